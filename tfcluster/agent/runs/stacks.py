"""Gets the Python stacks of a run's processes: at a signal, each thread writes its own to a file in the folder."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from signal import Signals
from weakref import WeakValueDictionary

from tfcluster import settings
from tfcluster.agent.event_loop import Turn
from tfcluster.core.stacks import ProcessStacks, ThreadStack, parse_stack
from tfcluster.os import libc, procfs
from tfcluster.os.process_handle import ProcessHandle, is_frozen, send_signal
from tfcluster.processes.runs.run_plan import STACKS

# The C library's tgkill(), or None before glibc 2.30: then only main threads are asked.
_tgkill = getattr(ctypes.CDLL(None), "tgkill", None)


class StackReader:
    """Has the threads of runs write their stacks, of each run one at a time, as they write to the same file."""

    def __init__(self) -> None:
        # By the run's folder, while one of its processes is asked.
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def read_all(self, driver: ProcessHandle, folder: Path) -> list[ProcessStacks]:
        """Return the stacks of all processes of a run's programs, also of those that they have forked."""
        pids = await find_processes(driver, folder, forked=True)
        return [await self.read(pid, folder, running=True) for pid in pids]

    async def read(self, pid: int, folder: Path, *, main_only: bool = False, running: bool = False) -> ProcessStacks:
        """Return the stacks of one process, which keeps running meanwhile.

        With `main_only`, only the main thread is asked.

        With `running`, threads that run without a pause are asked as well. The interpreter of a thread that happens to
        enter a function at that moment may crash, so ask them only for a user who wants to know.
        """
        path, command = folder / STACKS, read_command(pid)
        async with self._locks.setdefault(folder, asyncio.Lock()):
            try:
                pidfd = libc.pidfd_open(pid)
            except OSError:
                return ProcessStacks(pid, command, (), "it has exited")
            threads: list[ThreadStack] = []
            try:
                problem = await _signal_problem(pid, path)
                ids = [pid] if main_only else _thread_ids(pid)
                problem = problem or await _read_threads(pid, pidfd, path, ids, threads, running=running)
            except OSError as error:
                problem = f"its stacks cannot be read: {error.strerror}"
            finally:
                os.close(pidfd)
        if not threads and not problem:
            problem = "it has written no stacks; the disk might be full"
        return ProcessStacks(pid, command, tuple(threads), "" if threads else problem)


async def find_processes(driver: ProcessHandle, folder: Path, *, forked: bool) -> list[int]:
    """Return the pids of the processes of a run's programs that can write their stacks.

    Those nearest to the driver are found first; of very many processes, the others are not looked at.

    With `forked`, those that the programs have forked are included.
    """
    path = os.path.realpath(folder / STACKS)
    pids: list[int] = []
    turn = Turn()
    waiting = deque([driver.pid] if driver.is_alive() else [])
    for _ in range(settings.STACK_SEARCH_MAX):
        if not waiting or len(pids) == settings.STACK_PROCESSES_MAX:
            break
        pid = waiting.popleft()
        can_answer = await _has_open(pid, path, turn)
        if can_answer:
            pids.append(pid)
        if forked or not can_answer:
            waiting += procfs.children(pid)
    return pids


async def _has_open(pid: int, path: str, turn: Turn) -> bool:
    """Return whether a process has a file open; one that has executed another program since has not."""
    for file in procfs.open_files(pid):
        if file == path:
            return True
        await turn.pause()
    return False


def read_command(pid: int) -> str:
    """Return the command line of a process, or the title that it has given itself; empty if it has exited."""
    return " ".join(procfs.arguments(pid))


def count_switches(pid: int) -> int:
    """Return how often the main thread of a process has waited; as long as it waits, the number stays the same."""
    return int(procfs.read_status(pid).get("voluntary_ctxt_switches", "0"))


async def _signal_problem(pid: int, path: Path) -> str:
    """Return why a process cannot write its stacks; empty if it can."""
    status = procfs.read_status(pid)
    if not status:
        return "it has exited"
    if is_frozen(pid):
        return f"a signal has stopped it; `kill -CONT {pid}` resumes it"
    # Without the handler, the process ignores the signal.
    if not _has_signal(status["SigCgt"]) or not await _has_open(pid, os.path.realpath(path), Turn()):
        return "it executes another program, or has closed the file for its stacks"
    return ""


async def _read_threads(
    pid: int, pidfd: int, path: Path, ids: Sequence[int], threads: list[ThreadStack], *, running: bool
) -> str:
    """Have threads of a process write their stacks, one after the other, and append these to `threads`.

    Return why the main thread, or one after it, has not written its stack; empty if all have.
    """
    began = time.monotonic()
    deadline = began + settings.STACK_SECONDS
    for thread in ids:
        # One wait for all threads: those of TensorFlow that compute are many, and harmless, as they execute no Python.
        pauses = await _pauses(pid, thread, began + (settings.STACK_PAUSE_SECONDS if running else 0.0))
        # A thread that blocks the signal would make it wait for as long as it does.
        blocks = _has_signal(procfs.read_status(pid, thread).get("SigBlk", "0"))
        if blocks or not (pauses or running):
            if thread == pid:
                return f"its main thread {f'blocks {Signals(settings.STACK_SIGNAL).name}' if blocks else 'computes'}"
            continue
        if _waits_to_write(pid, thread):  # the signal would cut what it writes; without a buffer, Python loses the rest
            if thread == pid:
                return "its main thread waits until its output is read"
            continue
        os.truncate(path, 0)
        if thread == pid:
            send_signal(pidfd, settings.STACK_SIGNAL)
        elif _tgkill is not None:
            _tgkill(pid, thread, settings.STACK_SIGNAL)
        if not await _answers(pid, thread, path, deadline):
            return f"it has not answered within {settings.STACK_SECONDS:g} s"
        name = "main" if thread == pid else str(thread)
        if (stack := parse_stack(name, path.read_text(errors="replace"))) is not None:
            threads.append(stack)
    return ""


async def _answers(pid: int, thread: int, path: Path, deadline: float) -> bool:
    """Wait until a thread has handled the signal, or for a time; return whether it has.

    A thread that has taken the signal blocks it only a moment later, so it counts as done when it has begun to write
    and does not block it any more. One that has never executed Python writes nothing: a few looks are enough.
    """
    looks = settings.STACK_MAIN_LOOKS if thread == pid else settings.STACK_LOOKS
    while looks and time.monotonic() < deadline:
        has_begun = path.stat().st_size > 0
        if not _handles_signal(pid, thread):
            if has_begun:
                return True
            looks -= 1
        await asyncio.sleep(settings.STACK_POLL_SECONDS)
    return not looks


async def _pauses(pid: int, thread: int, deadline: float) -> bool:
    """Return whether a thread waits, as every thread does that has not got the interpreter's lock, by a deadline."""
    while procfs.read_status(pid, thread).get("State", "").startswith("R"):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(settings.STACK_POLL_SECONDS)
    return True


def _waits_to_write(pid: int, thread: int) -> bool:
    """Return whether a thread writes to a pipe, or a terminal, that is full."""
    with contextlib.suppress(OSError):  # it has exited
        return "write" in procfs.waits_in(pid, thread)
    return False


def _thread_ids(pid: int) -> list[int]:
    """Return the threads of a process that can be asked, the main thread first."""
    others = [thread for thread in procfs.threads(pid) if thread != pid]
    return [pid, *others] if _tgkill is not None else [pid]


def _handles_signal(pid: int, thread: int) -> bool:
    """Return whether a thread has still to handle the signal, or executes the handler, which blocks the signal."""
    status = procfs.read_status(pid, thread)
    return any(_has_signal(status.get(name, "0")) for name in ("SigPnd", "ShdPnd", "SigBlk"))


def _has_signal(mask: str) -> bool:
    """Return whether the signal is in a set of signals, as the kernel shows it."""
    return bool(int(mask, 16) >> (settings.STACK_SIGNAL - 1) & 1)
