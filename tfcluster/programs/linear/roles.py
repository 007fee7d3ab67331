"""Who does what in a training: which tasks hold the variables, which devices train, which task scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PS_JOB = "ps"
#: Jobs whose first task scores the parameters apart from the training.
SCORING_JOBS = ("evaluator", "scorer")


@dataclass(frozen=True)
class Roles:
    """The devices of a training by what they do, each by its full name.

    Attributes:
        servers: The CPU of each task that holds variables; tasks 0, 1, … of one job.
        replicas: Devices that train.
        evaluator: The CPU of the task that scores, if there is one.
    """

    servers: tuple[str, ...]
    replicas: tuple[str, ...]
    evaluator: str | None


def assign(addresses: Mapping[str, Sequence[str]], head: str, devices: Sequence[str]) -> Roles:
    """Assign the roles.

    Parameter servers hold the variables, where there are none the cluster's leading task. Every device that
    the run may compute on trains, but those of tasks that have another role; in a cluster that has
    no others, all do.

    Args:
        addresses: `host:port` of every task, by job.
        head: `host:port` of the leading task, which is the first of its job.
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
    """The full name of a task's first CPU device."""
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def job_of(device: str) -> str:
    """The job of a device's task."""
    return device.split("/")[1].removeprefix("job:")


def names(roles: Roles) -> dict[str, str]:
    """What people call each replica: its task, as `worker:1`, and the device only where a task has several of them."""
    tasks = [short_task(device) for device in roles.replicas]
    return {
        device: task if tasks.count(task) == 1 else f"{task}/{device.rpartition('/device:')[2]}"
        for device, task in zip(roles.replicas, tasks, strict=True)
    }


def short_task(device: str) -> str:
    """The task of a device, as `worker:1`."""
    parts = dict(part.split(":", 1) for part in device.strip("/").split("/"))
    return f"{parts['job']}:{parts['task']}"
