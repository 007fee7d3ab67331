"""The processes of a cluster as the kernel knows them: by a mark in the environment that each has from its agent.

The kernel shows the environment that a process was started with, and a fork has its parent's. So an agent writes the
mark over a placeholder there; all that it forks, and what those fork, can be found by it without any file. A program
that is executed has an environment of its own.
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

from tfcluster.process_handle import MARK, NO_MARK, ProcessHandle, environment_address, send

_POLL_SECONDS = 0.02


def mark_of(state_folder: Path) -> str:
    """The mark of the cluster, and host, that a state folder is of."""
    place = f"{os.getuid()}:{os.path.realpath(state_folder)}"
    return hashlib.sha256(os.fsencode(place)).hexdigest()[: len(NO_MARK)]


def mark_this_process(mark: str) -> None:
    """Write the mark over the placeholder in the environment that this process was started with."""
    placeholder = f"\0{MARK}=".encode()
    # A NUL in front, so that a variable whose name ends like ours is not taken for it.
    place = (b"\0" + Path("/proc/self/environ").read_bytes()).find(placeholder + NO_MARK.encode() + b"\0")
    address = environment_address()
    if place >= 0 and address:
        ctypes.memmove(address + place + len(placeholder) - 1, mark.encode(), len(mark))
    os.environ[MARK] = mark


def marked_processes(mark: str) -> list[ProcessHandle]:
    """The processes of this user that have a mark, except this one."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = []
    for pid in pids:
        # The start time first: should the pid be given away meanwhile, it is not the new process's.
        with suppress(OSError):
            process = ProcessHandle.of(pid)
            if process is not None and pid != os.getpid() and _is_marked(pid, mark):
                found.append(process)
    return found


def _is_marked(pid: int, mark: str) -> bool:
    folder = Path(f"/proc/{pid}")
    if folder.stat().st_uid != os.getuid():
        return False
    # In a container, though it may have a state folder of the same path.
    if not os.path.samestat((folder / "root").stat(), os.stat("/")):
        return False
    return f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")


async def end_processes(processes: Collection[ProcessHandle], grace: float) -> int:
    """Send processes SIGTERM, and SIGKILL to those that still run after `grace` seconds; return when they have ended.

    Returns:
        How many ran.
    """
    pidfds = [pidfd for process in processes if (pidfd := process.open()) is not None]
    try:
        running = list(pidfds)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pidfd in running:
                send(pidfd, number)
                send(pidfd, signal.SIGCONT)  # one that was stopped takes no SIGTERM
            while (running := _not_ended(running)) and (number is signal.SIGKILL or loop.time() < deadline):
                await asyncio.sleep(_POLL_SECONDS)
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
