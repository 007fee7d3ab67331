"""Compute an arithmetic expression as a graph in which each name is an operation placed on its own device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.programs.api import Program, TaskRequirement, TaskSelector
from tfcluster.programs.graph.parser import parse

_DEVICE_PART = re.compile(r"/(job|task):([^/]+)")


def _required_tasks(parameters: Mapping[str, Any]) -> Sequence[TaskRequirement]:
    """Return the tasks that `--device NAME=DEVICE` names, with omitted parts as in `run.choose_devices`."""
    requirements: list[TaskRequirement] = []
    for number, name in enumerate(parse(parameters["expression"], parameters["overrides"]).names):
        parts = dict(_DEVICE_PART.findall(parameters["placed"].get(name, "")))
        if parts and parts.get("task", "0").isdecimal():
            requirements.append((TaskSelector(job=parts.get("job"), index=int(parts.get("task", 0)), device=number),))
    return requirements


PROGRAM = Program(help="A graph of constants, split over the tasks.", required_tasks=_required_tasks)
