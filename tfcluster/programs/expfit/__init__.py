"""Train a small network on y = e^x: on a single task, data-parallel or model-parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.core.topology import LEADING_JOBS, PS_JOB
from tfcluster.programs.api import Program, TaskRequirement, TaskSelector

#: The task that holds the weights of data-parallel training: the first ps task, or else the first chief or master.
PARAMETER_TASK: TaskRequirement = tuple(TaskSelector(job=job, index=0) for job in (PS_JOB, *LEADING_JOBS))


def _required_tasks(parameters: Mapping[str, Any]) -> Sequence[TaskRequirement]:
    return [PARAMETER_TASK] if "data-parallel" in parameters["modes"] else []


PROGRAM = Program(help="Learns e^x: on one task, or its data or its layers divided.", required_tasks=_required_tasks)
