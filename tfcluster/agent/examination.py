"""Whether this host can start a layout's tasks, told before any is started; chooses what it leaves out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice

from tfcluster.agent.ports import Ports, holder_of
from tfcluster.errors import ClusterError
from tfcluster.model.counting import plural
from tfcluster.model.layout import Layout
from tfcluster.places import LOCAL_HOST


@dataclass(frozen=True)
class Choices:
    """What a host chose for a layout's tasks, by a task's name.

    Attributes:
        ports: The ports that the layout leaves out.
        gpus: The GPUs of the tasks that have some.
    """

    ports: dict[str, int]
    gpus: dict[str, list[str]]


def examine(layout: Layout, ports: Ports, gpus: Sequence[str], ours: Collection[int] = ()) -> Choices:
    """Hold every port that the layout names, choose those that it leaves out, and hand out GPUs.

    Args:
        layout: The cluster; a task that has its GPUs already keeps them.
        ports: Holds the ports.
        gpus: The host's GPUs.
        ours: The ports of the cluster that is up, which its own tasks have.

    Raises:
        ClusterError: Named ports are taken or there are too few GPUs; all of it is told.
    """
    before = ports.held
    problems = _taken_ports(layout, ports, ours)
    hints = ["Stop that process, or give the task another port in the spec, or leave the port out."] * bool(problems)
    needed = sum(task.gpus for task in layout.tasks)
    if needed > len(gpus):
        askers = ", ".join(f"{task.short} {task.gpus}" for task in layout.tasks if task.gpus)
        problems.append(f"the tasks ask for {plural(needed, 'GPU')} ({askers}), {LOCAL_HOST} has {len(gpus)}")
        hints.append("Lower `gpus:` in the spec; `cpus: N` gives a task several CPU devices instead.")
    if problems:
        ports.keep_only({*before, *ours})  # others may be waiting for theirs to be used
        raise ClusterError("\n".join(problems), hint=" ".join(hints))
    without = [task for task in (*layout.tasks, *layout.reserved) if task.port is None]
    chosen = zip(without, ports.choose(len(without), ours), strict=True)
    used = {gpu for task in layout.tasks for gpu in task.gpu_ids}
    left = (gpu for gpu in gpus if gpu not in used)
    return Choices(
        {task.name: port for task, port in chosen},
        {task.name: list(islice(left, task.gpus)) for task in layout.tasks if task.gpus and not task.gpu_ids},
    )


def hold_ports(layout: Layout, ports: Ports, ours: Collection[int]) -> None:
    """Hold every port of a layout, all of which are chosen, but those that are ours.

    Raises:
        ClusterError: Somebody has one by now; none is held that was not before.
    """
    before = ports.held
    if problems := _taken_ports(layout, ports, ours):
        ports.keep_only({*before, *ours})
        raise ClusterError("\n".join(problems), hint="Nothing was changed. Run the command again: it plans anew.")


def _taken_ports(layout: Layout, ports: Ports, ours: Collection[int]) -> list[str]:
    """Hold the ports that the layout names; why that cannot be, for each that cannot."""
    return [
        problem
        for task in (*layout.tasks, *layout.reserved)
        if task.port and task.port not in ours and (problem := _hold(task.short, task.port, ports))
    ]


def _hold(short: str, port: int, ports: Ports) -> str | None:
    """Hold a port; or say why it cannot be."""
    try:
        if ports.hold(port):
            return None
    except OSError as error:
        return f"{short}: port {port} cannot be used: {error.strerror}"
    return f"{short}: port {port} is taken by {holder_of(port)}"
