"""Whether this host can start a layout's tasks, told before any is started; chooses the ports left out."""

from __future__ import annotations

from tfcluster.agent.ports import Ports, holder_of
from tfcluster.errors import ClusterError
from tfcluster.model.layout import Layout


def examine(layout: Layout, ports: Ports) -> dict[str, int]:
    """Hold every port that the layout names and choose the ones that it leaves out.

    Returns:
        The chosen ports, by the task's name.

    Raises:
        ClusterError: Named ports are taken; all of them are told, each with the process that has it.
    """
    problems = [problem for task in layout.tasks if task.port and (problem := _hold(task.short, task.port, ports))]
    if problems:
        raise ClusterError(
            "\n".join(problems),
            hint="Stop that process, or give the task another port in the spec, or leave the port out.",
        )
    without = [task for task in layout.tasks if task.port is None]
    named = [task.port for task in layout.tasks if task.port is not None]
    return {task.name: port for task, port in zip(without, ports.choose(len(without), named), strict=True)}


def _hold(short: str, port: int, ports: Ports) -> str | None:
    """Hold a port; or say why it cannot be."""
    try:
        if ports.hold(port, linger=True):
            return None
    except OSError as error:
        return f"{short}: port {port} cannot be used: {error.strerror}"
    return f"{short}: port {port} is taken by {holder_of(port)}"
