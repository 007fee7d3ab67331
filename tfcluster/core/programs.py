"""The registry of programs for the agent: which tasks each program uses, and which task failures it tolerates."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tfcluster.core.devices import Device
from tfcluster.core.expression import parse
from tfcluster.core.topology import LEADING_JOBS, PS_JOB

#: Fault-tolerant programs: they handle lost tasks themselves as long as one task remains.
FAULT_TOLERANT_PROGRAMS = frozenset({"pi", "mean", "linear", "script"})
#: The user's own program; which tasks it uses is unknown.
SCRIPT = "script"

_DEVICE_PART = re.compile(r"/(job|task):([^/]+)")


def parameter_task(addresses: Mapping[str, Sequence[str]]) -> str | None:
    """Return the name of the parameter task: the ps, chief or master that holds the variables that others train.

    Args:
        addresses: `host:port` of every task, by job.

    Returns:
        The name of the first ps task, or else of the first chief or master; None if the cluster has none of them.
    """
    return next((f"/job:{job}/task:0" for job in (PS_JOB, *LEADING_JOBS) if addresses.get(job)), None)


def required_tasks(
    program: str,
    parameters: Mapping[str, Any],
    devices: Sequence[str],
    addresses: Mapping[str, Sequence[str]],
    head: str,
) -> list[str]:
    """Return the names of the tasks that a run requires even if it computes on none of their devices.

    Args:
        program: The run's program.
        parameters: The program's own parameters.
        devices: Full names of the devices that the run computes on.
        addresses: `host:port` of every task, by job.
        head: `host:port` of the head task.
    """
    names = {f"/job:{job}/task:{index}": each for job, tasks in addresses.items() for index, each in enumerate(tasks)}
    used: list[str | None] = []
    if program == "graph":
        used = _tasks_placed_on(parameters, devices)
    elif program == "expfit" and "data-parallel" in parameters["modes"]:
        used = [parameter_task(addresses)]
    elif program == "linear":
        servers = [name for name in names if name.startswith(f"/job:{PS_JOB}/")]
        used = [*(servers or [name for name, address in names.items() if address == head])]
    return [name for name in dict.fromkeys(used) if name in names]


def _tasks_placed_on(parameters: Mapping[str, Any], devices: Sequence[str]) -> list[str | None]:
    """Return the tasks that `run graph --device NAME=DEVICE` names.

    Parts that a device string omits are filled in as `programs.graph` does.
    """
    tasks: list[str | None] = []
    for number, name in enumerate(parse(parameters["expression"], parameters["given"]).names):
        wanted = dict(_DEVICE_PART.findall(parameters["placed"].get(name, "")))
        turn = dict(_DEVICE_PART.findall(devices[number % len(devices)]))
        if wanted:
            tasks.append("/job:{job}/task:{task}".format_map({**turn, "task": "0", **wanted}))
    return tasks


def compute_tasks(program: str, devices: Iterable[str], every: Collection[str]) -> list[str]:
    """Return the names of the tasks that a run computes on.

    Args:
        program: The run's program.
        devices: Full names of the devices that the run computes on.
        every: Names of all tasks of the cluster.
    """
    if program == SCRIPT:
        return list(every)
    return list(dict.fromkeys(Device(device, "").task for device in devices))


def blocking_losses(
    program: str, computing: Collection[str], besides: Iterable[str], down: Collection[str]
) -> list[str]:
    """Return the names of the lost tasks without which a run cannot continue.

    Args:
        program: The run's program.
        computing: Names of the tasks that the run computes on. A fault-tolerant program continues as long as one of
            them serves.
        besides: The result of `required_tasks`. A fault-tolerant program waits until these tasks have recovered.
        down: Names of the tasks that do not serve.

    Returns:
        The names; empty as long as the run can continue.
    """
    if program not in FAULT_TOLERANT_PROGRAMS:
        return [task for task in dict.fromkeys((*computing, *besides)) if task in down]
    lost = [task for task in computing if task in down]
    return lost if len(lost) == len(computing) else []
