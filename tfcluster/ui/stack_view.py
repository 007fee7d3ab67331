"""The output of `tfcluster stack`: stacks as Python's tracebacks have them, and the threads of a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tfcluster.core.stacks import ProcessStacks
from tfcluster.core.topology import short_task_name
from tfcluster.paths import LOCAL_HOST
from tfcluster.protocol.api.processes import RunStacksReply, TaskThreadsReply
from tfcluster.ui.console import Text, console
from tfcluster.ui.format import style_of


def show_run(replies: Sequence[RunStacksReply]) -> None:
    """Print the stacks of a run's processes."""
    if not any(reply.processes for reply in replies):
        console().print(f"{replies[0].run} has no Python process now: its program is starting or ending")
    for reply in replies:
        for process in reply.processes:
            _show_process(process, reply.host)


def _show_process(process: ProcessStacks, host: str) -> None:
    screen = console()
    on_host = "" if host == LOCAL_HOST else f" on {host}"
    screen.print(Text(f"process {process.pid}{on_host}: {process.command}", style="bold"), soft_wrap=True)
    if process.problem:
        screen.print(Text(f"  no stacks: {process.problem}", style="yellow"), soft_wrap=True)
    for thread in process.threads:
        screen.print(Text(f"  thread {thread.name} (most recent call first):"), soft_wrap=True)
        for frame in thread.frames:
            line = "?" if frame.line is None else frame.line
            screen.print(Text(f'    File "{frame.file}", line {line}, in {frame.function}'), soft_wrap=True)
        if not thread.frames:
            screen.print(Text("    no Python code"))


def show_task(reply: TaskThreadsReply) -> None:
    """Print the state and the threads of a task's server."""
    screen = console()
    on_host = "" if reply.host == LOCAL_HOST else f" on {reply.host}"
    process = "" if reply.pid is None else f", process {reply.pid}"
    state = (reply.state.value, style_of(reply.state.value))
    screen.print(
        Text.assemble((f"{short_task_name(reply.task)}{on_host}", "bold"), "  ", state, process), soft_wrap=True
    )
    if reply.problem:
        screen.print(Text(f"  {reply.problem}", style="yellow"), soft_wrap=True)
        screen.print(Text(f"  {reply.hint}"), soft_wrap=True)
    elif reply.pid is not None:
        screen.print("  it answers")
    threads = Counter((thread.state, thread.waits_in, thread.name) for thread in reply.threads)
    for (letter, waits_in, name), count in threads.most_common():
        where = f" in {waits_in}" if waits_in else ""
        screen.print(Text(f"  {count} x {name}: {_STATES.get(letter, letter)}{where}"), soft_wrap=True)
    if reply.log:
        screen.print("  its last lines:")
    for line in reply.log:
        screen.print(Text(f"    {line}", style="dim"), soft_wrap=True)


_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a device",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has exited",
}
