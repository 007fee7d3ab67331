"""What the agent knows of programs: the tasks that each uses, and which of them it goes on without."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tfcluster.core.devices import Device
from tfcluster.core.expression import parse
from tfcluster.core.topology import LEADING_JOBS, PS_JOB

#: Programs that see to a lost task themselves, as long as one is left to them.
FAULT_TOLERANT_PROGRAMS = frozenset({"pi", "mean", "linear", "script"})
#: The program that is the user's own; what it uses of the cluster is not known.
SCRIPT = "script"

_DEVICE_PART = re.compile(r"/(job|task):([^/]+)")


def parameter_task(addresses: Mapping[str, Sequence[str]]) -> str | None:
    """The name of the parameter server or leading task that keeps what others train; None when there is neither.

    Args:
        addresses: `host:port` of every task, by job.
    """
    return next((f"/job:{job}/task:0" for job in (PS_JOB, *LEADING_JOBS) if addresses.get(job)), None)


def required_tasks(
    program: str,
    parameters: Mapping[str, Any],
    devices: Sequence[str],
    addresses: Mapping[str, Sequence[str]],
    head: str,
) -> list[str]:
    """Names of tasks that a run uses whether or not it has been given devices of theirs to compute on.

    Args:
        program: Its program.
        parameters: The program's own parameters.
        devices: Full names of the devices that it computes on.
        addresses: `host:port` of every task, by job.
        head: `host:port` of the leading task.
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
    """The tasks that `run graph --device NAME=DEVICE` names; what a string leaves out is as in `programs.graph`."""
    tasks: list[str | None] = []
    for number, name in enumerate(parse(parameters["expression"], parameters["given"]).names):
        wanted = dict(_DEVICE_PART.findall(parameters["placed"].get(name, "")))
        turn = dict(_DEVICE_PART.findall(devices[number % len(devices)]))
        if wanted:
            tasks.append("/job:{job}/task:{task}".format_map({**turn, "task": "0", **wanted}))
    return tasks


def compute_tasks(program: str, devices: Iterable[str], every: Collection[str]) -> list[str]:
    """Names of the tasks that a run computes on.

    Args:
        program: Its program.
        devices: Full names of the devices that it computes on.
        every: Names of the cluster's tasks.
    """
    if program == SCRIPT:
        return list(every)
    return list(dict.fromkeys(Device(device, "").task for device in devices))


def blocking_losses(
    program: str, computing: Collection[str], besides: Iterable[str], down: Collection[str]
) -> list[str]:
    """Names of the lost tasks without which a run cannot go on; none while it can.

    Args:
        program: Its program.
        computing: Names of the tasks that it computes on. With one of them a program goes on that sees to lost tasks
            itself.
        besides: Those of `required_tasks`; such a program waits until they are back.
        down: Names of the tasks that do not serve.
    """
    if program not in FAULT_TOLERANT_PROGRAMS:
        return [task for task in dict.fromkeys((*computing, *besides)) if task in down]
    lost = [task for task in computing if task in down]
    return lost if len(lost) == len(computing) else []
