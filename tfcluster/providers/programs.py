"""Run the commands of Slurm and of Kubernetes that this machine has."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfcluster.errors import ClusterError


def find_program(name: str, hint: str) -> str:
    """Return the path of a program; an error with the hint says that there is none."""
    path = shutil.which(name)
    if path is None:
        raise ClusterError(f"there is no {name} on this machine", hint=hint)
    return path


def run_program(
    argv: Sequence[str], stdin: str, seconds: float, hint: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit code; an error with the hint says that it takes longer."""
    try:
        return subprocess.run(
            argv,
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            errors="surrogateescape",  # names, comments and events need not be UTF-8
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{Path(argv[0]).name} has not answered within {seconds:g} s", hint=hint) from None
