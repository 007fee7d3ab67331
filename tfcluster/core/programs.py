"""The programs that `tfcluster run` has by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tfcluster.core.text import join_problems

#: The bundled programs, each a module of `tfcluster.programs`, in the order in which a new user needs them.
BUNDLED = ("graph", "pi", "mean", "linear", "expfit")
#: Those of them that continue when tasks that they use are lost or restarted.
TOLERANT = ("pi", "mean", "linear")
#: Those of them that use no tasks but those of their devices.
ON_DEVICES = ("pi", "mean")
#: The name of the user's own script or module in place of a program.
SCRIPT = "script"


def missing_notes(missing: Mapping[str, str]) -> list[str]:
    """Return the notes for the user of a run without some tasks, given why each of them is not ready."""
    if not missing:
        return []
    return [f"{join_problems(missing.values())}: running without {'it' if len(missing) == 1 else 'them'}"]


def tasks_with_addresses(addresses: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, str]]:
    """Yield the name and the address of every task."""
    for job, tasks in addresses.items():
        for index, address in enumerate(tasks):
            yield f"/job:{job}/task:{index}", address
