"""Assign the roles in a training: parameter servers, training replicas and the evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfcluster.programs.sessions import short_task

PS_JOB = "ps"
#: Jobs whose first task evaluates the parameters separately from the training.
SCORING_JOBS = ("evaluator", "scorer")


@dataclass(frozen=True)
class Roles:
    """The full names of a training's devices, by role.

    Attributes:
        servers: The CPU of each task that holds variables; these are the tasks 0, 1, … of one job.
        replicas: The devices that train.
        evaluator: The CPU of the task that evaluates, or None.
    """

    servers: tuple[str, ...]
    replicas: tuple[str, ...]
    evaluator: str | None


def assign(addresses: Mapping[str, Sequence[str]], head: str, devices: Sequence[str]) -> Roles:
    """Assign the roles.

    The parameter servers hold the variables; without parameter servers the head task does. The devices to compute on
    train, except those of tasks with another role. If all of them belong to such tasks, all of them train and there is
    no evaluator.

    Args:
        addresses: `host:port` of every task, by job.
        head: `host:port` of the head task, which is the first of its job.
        devices: Full names of the devices to compute on.
    """
    servers = tuple(cpu_of(PS_JOB, index) for index in range(len(addresses.get(PS_JOB, ()))))
    apart = (PS_JOB, *SCORING_JOBS)
    if not servers:
        servers = (cpu_of(next(job for job, tasks in addresses.items() if head in tasks), 0),)
    training = tuple(device for device in devices if job_of(device) not in apart)
    evaluator = next((cpu_of(job, 0) for job in SCORING_JOBS if job in addresses), None)
    return Roles(servers, training or tuple(devices), evaluator if training else None)


def cpu_of(job: str, index: int) -> str:
    """Return the full name of a task's first CPU device."""
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def job_of(device: str) -> str:
    """Return the job of a device's task."""
    return device.split("/")[1].removeprefix("job:")


def names(roles: Roles) -> dict[str, str]:
    """Return a short name for each replica, by its device.

    The name is that of the task, such as `worker:1`, followed by the device if the task has several replicas.
    """
    tasks = [short_task(device) for device in roles.replicas]
    return {
        device: task if tasks.count(task) == 1 else f"{task}/{device.rpartition('/device:')[2]}"
        for device, task in zip(roles.replicas, tasks, strict=True)
    }
