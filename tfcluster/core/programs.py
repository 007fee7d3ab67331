"""Which tasks a run requires, and which task failures its program tolerates, from the data in the run's request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tfcluster.core.devices import Device
from tfcluster.records import record_class

#: The programs that are part of tfcluster, in the order in which a new user needs them.
BUNDLED = ("graph", "pi", "mean", "linear", "expfit", "script")


@record_class(frozen=True)
class TaskSelector:
    """Selects tasks of a cluster: tasks of a job, or the head task."""

    job: str | None = None  # None for the job of the device that `device` selects
    index: int | None = None  # None for all tasks of the job
    device: int = 0  # the number of one of the devices that the run computes on, modulo their count
    head: bool = False  # select the head task; the other attributes are ignored

    def select(self, addresses: Mapping[str, Sequence[str]], devices: Sequence[str] = (), head: str = "") -> list[str]:
        """Return the selected tasks that the cluster has; addresses and head are `host:port`, devices full names."""
        names = dict(tasks_with_addresses(addresses))
        if self.head:
            return [name for name, address in names.items() if address == head]
        job = self.job
        if job is None:
            job = devices[self.device % len(devices)].split("/")[1].removeprefix("job:")
        prefix = f"/job:{job}/task:"
        if self.index is not None:
            return [name for name in (f"{prefix}{self.index}",) if name in names]
        return [name for name in names if name.startswith(prefix)]


#: Alternatives: the first one for which the cluster has tasks applies.
TaskRequirement = tuple[TaskSelector, ...]


@record_class(frozen=True)
class ProgramTraits:
    """The facts about a program that an agent requires to supervise a run of it."""

    package: str = ""  # the installed package that it belongs to; empty for a part of tfcluster
    # The program handles lost tasks itself as long as one of the tasks that it computes on remains. A run of any other
    # program fails as soon as a task is lost that it computes on or requires.
    fault_tolerant: bool = False
    # The program is the user's own script, the main program of its interpreter: it may use any task, its output is
    # shown, and it ends as `python SCRIPT` does.
    is_script: bool = False
    required_tasks: tuple[TaskRequirement, ...] = ()  # also if a run computes on none of their devices
    uses_servers: bool = True  # False for processes that are servers themselves


def required_tasks(
    traits: ProgramTraits, devices: Sequence[str], addresses: Mapping[str, Sequence[str]], head: str
) -> list[str]:
    """Return the tasks that a run requires even if it computes on none of their devices; see `TaskSelector.select`."""
    names: list[str] = []
    for requirement in traits.required_tasks:
        names += first_selected(requirement, addresses, devices, head)
    return list(dict.fromkeys(names))


def first_selected(
    requirement: TaskRequirement,
    addresses: Mapping[str, Sequence[str]],
    devices: Sequence[str] = (),
    head: str = "",
) -> list[str]:
    """Return the tasks of the first alternative that selects any; the arguments are those of `TaskSelector.select`."""
    selections = (selector.select(addresses, devices, head) for selector in requirement)
    return next((names for names in selections if names), [])


def compute_tasks(traits: ProgramTraits, devices: Iterable[str], every: Collection[str]) -> list[str]:
    """Return the names of the tasks that a run computes on."""
    if traits.is_script:
        return list(every) if traits.uses_servers else []
    return list(dict.fromkeys(Device(device, "").task for device in devices))


def missing_notes(missing: Mapping[str, str]) -> list[str]:
    """Return the notes for the user of a run without some tasks, given why each of them is not ready."""
    if not missing:
        return []
    return [f"{'; '.join(missing.values())}: running without {'it' if len(missing) == 1 else 'them'}"]


def blocking_losses(
    traits: ProgramTraits, computing: Collection[str], required: Iterable[str], down: Collection[str]
) -> list[str]:
    """Return the names of the lost tasks without which a run cannot continue; empty as long as it can.

    A fault-tolerant program continues as long as one of the tasks that it computes on serves, and waits until the tasks
    that it requires (the result of `required_tasks`) have recovered. The tasks in `down` do not serve.
    """
    if not traits.fault_tolerant:
        return [task for task in dict.fromkeys((*computing, *required)) if task in down]
    losses = [task for task in computing if task in down]
    return losses if len(losses) == len(computing) else []


def fails_at_restart(
    traits: ProgramTraits, computing: Collection[str], required: Iterable[str], restarted: Collection[str]
) -> bool:
    """Return whether a run fails when tasks are restarted. A script may fail, as it may use any task.

    Any other fault-tolerant program waits for tasks that restart, even if they are all that it computes on. `required`
    is the result of `required_tasks`.
    """
    is_fragile = traits.is_script or not traits.fault_tolerant
    return is_fragile and not {*computing, *required}.isdisjoint(restarted)


def tasks_with_addresses(addresses: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, str]]:
    """Yield the name and the address of every task."""
    for job, tasks in addresses.items():
        for index, address in enumerate(tasks):
            yield f"/job:{job}/task:{index}", address
