"""Mark the processes of a cluster, and end those that have the mark.

The mark is a variable in the environment that each process inherits from its agent. The kernel shows the environment
with which a process was started (/proc/PID/environ), and a forked process has the same one as its parent. The agent
overwrites a placeholder in its own environment with the mark; all processes that it forks, and all that these fork, can
then be found by the mark without any file. A program started by exec gets a new environment.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
from collections.abc import Collection
from pathlib import Path

from tfcluster import settings
from tfcluster.process_handle import MARK, NO_MARK, ProcessHandle, environment_address, send_signal


def mark_this_process(mark: str) -> None:
    """Overwrite the placeholder in the environment with which this process was started.

    Args:
        mark: The mark.
    """
    placeholder = f"\0{MARK}=".encode()
    # The NUL in front excludes a variable whose name merely ends with this one's name.
    place = (b"\0" + Path("/proc/self/environ").read_bytes()).find(placeholder + NO_MARK.encode() + b"\0")
    address = environment_address()
    if place >= 0 and address:
        ctypes.memmove(address + place + len(placeholder) - 1, mark.encode(), len(mark))
    os.environ[MARK] = mark


async def end_processes(processes: Collection[ProcessHandle], grace: float) -> int:
    """Terminate processes and wait until they have exited.

    Sends SIGTERM to all of them, and SIGKILL to those that still run after the grace period.

    Args:
        processes: The processes.
        grace: Seconds between SIGTERM and SIGKILL.

    Returns:
        The number of processes that were running.
    """
    pidfds = [pidfd for process in processes if (pidfd := process.open()) is not None]
    try:
        running = list(pidfds)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pidfd in running:
                send_signal(pidfd, number)
                send_signal(pidfd, signal.SIGCONT)  # a stopped process does not handle SIGTERM
            while (running := _not_ended(running)) and (number is signal.SIGKILL or loop.time() < deadline):
                await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
    return len(pidfds)


def _not_ended(pidfds: Collection[int]) -> list[int]:
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    ended = {pidfd for pidfd, _ in poll.poll(0)}
    return [pidfd for pidfd in pidfds if pidfd not in ended]
