"""Find the processes of a cluster by a mark in the environment that each of them inherits from its agent.

The kernel shows the environment with which a process was started (/proc/PID/environ), and a forked process has the
same one as its parent. The agent overwrites a placeholder in its own environment with the mark; all processes that it
forks, and all that these fork, can then be found by the mark without any file. A program started by exec gets a new
environment.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import select
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from tfcluster import settings
from tfcluster.process_handle import MARK, NO_MARK, ProcessHandle, environment_address, send_signal


def mark_of(state_folder: Path) -> str:
    """Return the mark of the cluster and host to which a state directory belongs.

    Args:
        state_folder: The state directory.
    """
    place = f"{os.getuid()}:{os.path.realpath(state_folder)}"
    return hashlib.sha256(os.fsencode(place)).hexdigest()[: len(NO_MARK)]


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


def marked_processes(mark: str) -> list[ProcessHandle]:
    """List the processes of this user that have a mark, except this one.

    Args:
        mark: The mark.

    Returns:
        The processes.
    """
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = []
    for pid in pids:
        # Read the start time before the environment: if the pid is reused in between, the handle does not match the new
        # process.
        with suppress(OSError):
            process = ProcessHandle.from_pid(pid)
            if process is not None and pid != os.getpid() and _is_marked(pid, mark):
                found.append(process)
    return found


def _is_marked(pid: int, mark: str) -> bool:
    folder = Path(f"/proc/{pid}")
    if folder.stat().st_uid != os.getuid():
        return False
    # A process in a container does not belong to this cluster, even if its state directory has the same path.
    if not os.path.samestat((folder / "root").stat(), os.stat("/")):
        return False
    return f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")


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
