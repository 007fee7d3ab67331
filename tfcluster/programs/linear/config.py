"""Configuration of a training: its settings, the roles of its devices, and the check for divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfcluster.core.topology import PS_JOB
from tfcluster.errors import ClusterError
from tfcluster.programs.api import Context
from tfcluster.programs.linear.dataset import Batches
from tfcluster.programs.sessions import short_task

#: Jobs whose first task evaluates the parameters separately from the training.
EVALUATOR_JOBS = ("evaluator", "scorer")
#: Default learning rate of each optimizer, suited to points in [-1, 1].
LEARNING_RATES = {"adagrad": 0.8, "sgd": 0.1, "momentum": 0.05, "adam": 0.1}


@dataclass(frozen=True)
class Roles:
    """The full names of a training's devices, by role."""

    servers: tuple[str, ...]  # the CPU of each task that holds variables; these are the tasks 0, 1, … of one job
    replicas: tuple[str, ...]  # the devices that train
    evaluator: str | None  # the CPU of the task that evaluates

    def replica_names(self) -> dict[str, str]:
        """Return a short name for each replica, by its device.

        The name is that of the task, such as `worker:1`, followed by the device if the task has several replicas.
        """
        tasks = [short_task(device) for device in self.replicas]
        return {
            device: task if tasks.count(task) == 1 else f"{task}/{device.rpartition('/device:')[2]}"
            for device, task in zip(self.replicas, tasks, strict=True)
        }


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training."""

    context: Context
    roles: Roles
    batches: Batches
    optimizer: str  # a key of `LEARNING_RATES`
    rate: float


def assign_roles(addresses: Mapping[str, Sequence[str]], head_address: str, devices: Sequence[str]) -> Roles:
    """Assign the roles.

    The parameter servers hold the variables; without parameter servers the head task does, which is the first of its
    job. The devices to compute on train, except those of tasks with another role. If all of them belong to such tasks,
    all of them train and there is no evaluator.
    """
    servers = tuple(cpu_of(PS_JOB, index) for index in range(len(addresses.get(PS_JOB, ()))))
    if not servers:
        servers = (cpu_of(next(job for job, tasks in addresses.items() if head_address in tasks), 0),)
    replicas = tuple(device for device in devices if job_of(device) not in (PS_JOB, *EVALUATOR_JOBS))
    evaluator = next((cpu_of(job, 0) for job in EVALUATOR_JOBS if job in addresses), None)
    return Roles(servers, replicas or tuple(devices), evaluator if replicas else None)


def cpu_of(job: str, index: int) -> str:
    """Return the full name of a task's first CPU device."""
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def job_of(device: str) -> str:
    """Return the job of a device's task."""
    return device.split("/")[1].removeprefix("job:")


def are_finite(values: Mapping[str, Any]) -> bool:
    """Return whether every value is a finite number."""
    return all(math.isfinite(value) for value in values.values())


def check_divergence(step: int, values: Mapping[str, Any]) -> None:
    """Raise an error if the training has diverged.

    `values` are w, b and any other values after `step` steps; each has to be a finite number.
    """
    if not are_finite(values):
        raise ClusterError(
            f"the training diverged: after step {step:,} w is {values['w']:g} and b is {values['b']:g}",
            hint="Lower the learning rate with --lr, choose --optimizer adagrad, or scale the data.",
        )
