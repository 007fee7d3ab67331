"""Whether this host can start a layout's tasks, told before any is started; chooses what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
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


def examine(layout: Layout, ports: Ports, gpus: Sequence[str]) -> Choices:
    """Hold every port that the layout names, choose those that it leaves out, and hand out GPUs.

    Args:
        layout: The cluster.
        ports: Holds the ports.
        gpus: The host's GPUs.

    Raises:
        ClusterError: Named ports are taken or there are too few GPUs; all of it is told.
    """
    before = ports.held
    problems = [problem for task in layout.tasks if task.port and (problem := _hold(task.short, task.port, ports))]
    hints = ["Stop that process, or give the task another port in the spec, or leave the port out."] * bool(problems)
    needed = sum(task.gpus for task in layout.tasks)
    if needed > len(gpus):
        askers = ", ".join(f"{task.short} {task.gpus}" for task in layout.tasks if task.gpus)
        problems.append(f"the tasks ask for {plural(needed, 'GPU')} ({askers}), {LOCAL_HOST} has {len(gpus)}")
        hints.append("Lower `gpus:` in the spec; `cpus: N` gives a task several CPU devices instead.")
    if problems:
        ports.keep_only(before)  # others may be waiting for theirs to be used
        raise ClusterError("\n".join(problems), hint=" ".join(hints))
    without = [task for task in layout.tasks if task.port is None]
    chosen = zip(without, ports.choose(len(without)), strict=True)
    left = iter(gpus)
    return Choices(
        {task.name: port for task, port in chosen},
        {task.name: list(islice(left, task.gpus)) for task in layout.tasks if task.gpus},
    )


def _hold(short: str, port: int, ports: Ports) -> str | None:
    """Hold a port; or say why it cannot be."""
    try:
        if ports.hold(port):
            return None
    except OSError as error:
        return f"{short}: port {port} cannot be used: {error.strerror}"
    return f"{short}: port {port} is taken by {holder_of(port)}"
