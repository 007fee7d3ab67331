"""Run a user's script like `python SCRIPT`, beside the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tfcluster.programs.api import Program


def _command_line(parameters: Mapping[str, Any]) -> str:
    start = ("-m", parameters["module"]) if parameters.get("module") else (PurePath(parameters["path"]).name,)
    return " ".join((*start, *parameters["args"]))


PROGRAM = Program(
    help="Your own script or module: `tfcluster run train.py ARGS`.",
    fault_tolerant=True,
    is_script=True,
    describe=_command_line,
)
