"""What the agent knows of programs: which of them go on without a task that they lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tfcluster.model.devices import Device

#: Programs that see to a lost task themselves, as long as one is left to them.
SURVIVORS = frozenset({"pi", "mean", "linear", "script"})
#: The program that is the user's own; what it uses of the cluster is not known.
SCRIPT = "script"


def tasks_used(program: str, devices: Iterable[str], every: Collection[str]) -> list[str]:
    """Names of the tasks that a run uses.

    Args:
        program: Its program.
        devices: Full names of the devices that it computes on.
        every: Names of the cluster's tasks.
    """
    if program == SCRIPT:
        return list(every)
    return list(dict.fromkeys(Device(device, "").task for device in devices))


def cannot_go_on(program: str, used: Collection[str], down: Collection[str]) -> list[str]:
    """Names of the lost tasks without which a run cannot go on; none while it can.

    Args:
        program: Its program.
        used: Names of the tasks that it uses.
        down: Names of the tasks that do not serve.
    """
    lost = [task for task in used if task in down]
    return [] if program in SURVIVORS and len(lost) < len(used) else lost
