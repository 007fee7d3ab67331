"""Gets the Python stacks of a run's processes: each writes its own, at a signal, to a file in the run's folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from pathlib import Path
from weakref import WeakValueDictionary

from tfcluster import settings
from tfcluster.core.stacks import ProcessStacks, parse_stacks
from tfcluster.process_handle import ProcessHandle, is_frozen, send_signal
from tfcluster.processes.runs.stack_dump import STACKS


class StackReader:
    """Has the processes of runs write their stacks, of each run one at a time, as they write to the same file."""

    def __init__(self) -> None:
        # By the run's folder, while one of its processes is asked.
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def read_all(self, driver: ProcessHandle, folder: Path) -> list[ProcessStacks]:
        """Return the stacks of all processes of a run's programs, also of those that they have forked.

        Args:
            driver: The run's driver.
            folder: The run's folder.
        """
        return [await self.read(pid, folder) for pid in find_processes(driver, folder, forked=True)]

    async def read(self, pid: int, folder: Path) -> ProcessStacks:
        """Return the stacks of one process, which goes on meanwhile.

        Args:
            pid: The pid, as `find_processes` returns it.
            folder: The run's folder.
        """
        path, command = folder / STACKS, read_command(pid)
        async with self._locks.setdefault(folder, asyncio.Lock()):
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                return ProcessStacks(pid, command, (), "it has exited")
            try:
                problem, text = await _write_stacks(pid, pidfd, path)
            except OSError as error:
                problem, text = f"its stacks cannot be read: {error.strerror}", ""
            finally:
                os.close(pidfd)
        threads = parse_stacks(text)
        if not threads and not problem:
            problem = "it has written no stacks; the disk may be full"
        return ProcessStacks(pid, command, threads, "" if threads else problem)


def find_processes(driver: ProcessHandle, folder: Path, *, forked: bool) -> list[int]:
    """Return the pids of the processes of a run's programs that can write their stacks.

    Those nearest to the driver are found first; of very many processes, the others are not looked at.

    Args:
        driver: The run's driver.
        folder: The run's folder.
        forked: Whether to include those that the programs have forked.
    """
    path = os.path.realpath(folder / STACKS)
    pids: list[int] = []
    waiting = deque([driver.pid] if driver.is_alive() else [])
    for _ in range(settings.STACK_SEARCH_MAX):
        if not waiting or len(pids) == settings.STACK_PROCESSES_MAX:
            break
        pid = waiting.popleft()
        can_answer = _has_open(pid, path)
        if can_answer:
            pids.append(pid)
        if forked or not can_answer:
            waiting += _children(pid)
    return pids


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children


def _has_open(pid: int, path: str) -> bool:
    """Return whether a process has a file open; one that has executed another program since has not."""
    with contextlib.suppress(OSError):  # it has exited, or belongs to another user
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{name}") == path:
                    return True
    return False


def read_command(pid: int) -> str:
    """Return the command line of a process, or the title that it has given itself; empty if it has exited."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def count_switches(pid: int) -> int:
    """Return how often the main thread of a process has waited; as long as it waits, the number stays the same."""
    return int(_status(pid, pid).get("voluntary_ctxt_switches", "0"))


def _signal_problem(pid: int, path: Path) -> str:
    """Return why a process cannot write its stacks; empty if it can."""
    status = _status(pid, pid)
    if not status:
        return "it has exited"
    if is_frozen(pid):
        return f"a signal has stopped it; `kill -CONT {pid}` resumes it"
    # Without the handler, the signal would end the process.
    if not _has_signal(status["SigCgt"]) or not _has_open(pid, os.path.realpath(path)):
        return "it executes another program, or has closed the file for its stacks"
    return ""


async def _write_stacks(pid: int, pidfd: int, path: Path) -> tuple[str, str]:
    """Have a process write its stacks, and wait until it has.

    Returns:
        Why it has not written them, and the text; one of the two is empty.

    Raises:
        OSError: The file cannot be read or emptied.
    """
    blocking = _blocking_threads(pid)
    if problem := _signal_problem(pid, path):
        return problem, ""
    os.truncate(path, 0)
    send_signal(pidfd, settings.STACK_SIGNAL)
    deadline = time.monotonic() + settings.STACK_SECONDS
    while time.monotonic() < deadline:
        await asyncio.sleep(settings.STACK_POLL_SECONDS)
        status = _status(pid, pid)
        # The handler blocks the signal in the thread that executes it.
        if not status or not (_has_signal(status["ShdPnd"]) or _blocking_threads(pid) - blocking):
            return "", path.read_text(errors="replace")
    return f"it has not answered within {settings.STACK_SECONDS:g} s", ""


def _blocking_threads(pid: int) -> set[int]:
    """Return the threads of a process that block the signal."""
    threads: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            if _has_signal(_status(pid, thread).get("SigBlk", "0")):
                threads.add(thread)
    return threads


def _has_signal(mask: str) -> bool:
    """Return whether the signal is in a set of signals, as the kernel shows it."""
    return bool(int(mask, 16) >> (settings.STACK_SIGNAL - 1) & 1)


def _status(pid: int, thread: int) -> dict[str, str]:
    """Return the fields of a thread's status as the kernel has it; empty if it has exited."""
    try:
        text = Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
