"""The process that keeps what tasks print: bounded on the disk, each line with its time.

It outlives the agent, as the tasks do: their output is bounded also while no agent lives. It remembers nothing that
the files do not say, so it can die at any moment; the agent forks another, which first ends the one before.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from tfcluster.process_handle import ProcessHandle, send
from tfcluster.processes import daemonize
from tfcluster.processes.logs.log_buffer import LogBuffer
from tfcluster.processes.logs.rotating_log import RotatingLog

_LOCK = ".keeper"
_MODIFIED = 0x2
# Seconds in which what comes next is kept in one go; a task that prints without end wakes no more often.
_PAUSE = 0.01
# How often to look where nobody tells: at the spools without inotify, after the agent once that is gone.
_LOOK_SECONDS, _GONE_SECONDS = 0.1, 1.0


def keep(title: str, log_buffers: Path, logs: Path, size: int, count: int, needed: Path, agent: socket.socket) -> None:
    """Keep what tasks print; returns when the agent is gone and so is the file that says that there are tasks.

    Args:
        title: What `ps` shows.
        log_buffers: The folder of the files that tasks print into.
        logs: The folder of the logs.
        size: Bytes of each file of a log.
        count: How many files a log has.
        needed: Is there as long as tasks may live without an agent.
        agent: The child's end of a socket pair; its end of file says that the agent is gone.
    """
    daemonize.detach(title, keep=[agent.fileno()])
    desk = LogWriter(log_buffers, logs, size, count)
    wake = select.poll()
    changes = _watch(log_buffers)
    if changes is not None:
        wake.register(changes, select.POLLIN)
    wake.register(agent, select.POLLIN)
    orphaned = False
    while not orphaned or needed.exists():
        if changes is not None:
            _clear(changes)
        while desk.work():
            continue
        if not desk.is_mine():
            return
        time.sleep(_PAUSE)
        patience: float | None = _GONE_SECONDS if orphaned or desk.failing else None
        for fd, _ in wake.poll(1000 * _LOOK_SECONDS if changes is None else patience and 1000 * patience):
            if fd == agent.fileno():
                orphaned = True
                wake.unregister(agent)
    desk.finish()


class LogWriter:
    """Who keeps a cluster's output at the moment: the only one, which the former one has been ended for.

    Attributes:
        failing: Something could not be written; it is tried again.
    """

    def __init__(self, log_buffers: Path, logs: Path, size: int, count: int) -> None:
        self.failing = False
        self._folder = log_buffers
        self._logs = logs
        self._limits = size, count
        self._spools: dict[str, LogBuffer] = {}
        self._lock = _succeed(log_buffers / _LOCK)

    def work(self, *, ended: bool = False) -> bool:
        """Keep a block of what each task has printed; whether there may be more."""
        failed, more = False, False
        for name in self._names():
            if name not in self._spools:
                log = RotatingLog(self._logs / f"{name}.log", *self._limits)
                self._spools[name] = LogBuffer(self._folder / name, log)
            try:
                more = self._spools[name].drain(ended=ended) or more
            except OSError as error:  # a full disk: it stays in the spool
                if not self.failing:
                    print(f"{name}: cannot keep its output: {error}", file=sys.stderr, flush=True)
                failed = True
        self.failing = failed
        return more

    def is_mine(self) -> bool:
        """Whether whoever comes next would find this one; somebody may have deleted the folder."""
        return _is_at(self._lock, self._folder / _LOCK)

    def finish(self) -> None:
        """Keep all, now that nobody prints, and remove the spools: what a full disk does not take is lost."""
        while self.work(ended=True):
            continue
        for name in self._names():
            (self._folder / name).unlink()
        (self._folder / _LOCK).unlink(missing_ok=True)
        os.close(self._lock)
        with suppress(OSError):
            self._folder.rmdir()

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name != _LOCK]
        except FileNotFoundError:
            return []


def _succeed(path: Path) -> int:
    """End the process that has the lock, if one has it, and take it; the lock's descriptor."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    process = ProcessHandle.of(os.getpid())
    assert process is not None, "this process lives"
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(lock, path):  # whoever had it may have removed it
                os.ftruncate(lock, 0)
                os.pwrite(lock, b"%d %d\n" % (process.pid, process.start_time), 0)
                return lock
        except BlockingIOError:
            _end(os.pread(lock, 100, 0))
            time.sleep(0.005)
        os.close(lock)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _end(holder: bytes) -> None:
    """End the process that the lock's file names; a process that has just taken it may not have written that yet."""
    with suppress(ValueError):
        pid, start_time = map(int, holder.split())
        pidfd = ProcessHandle(pid, start_time).open()
        if pidfd is not None and pid != os.getpid():
            send(pidfd, signal.SIGKILL)
            os.close(pidfd)


def _watch(folder: Path) -> int | None:
    """A descriptor that can be read when a file in a folder has changed; None where the system has none to give."""
    libc = ctypes.CDLL(None)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(folder), _MODIFIED) < 0:
        os.close(fd)
        return None
    return fd


def _clear(changes: int) -> None:
    with suppress(BlockingIOError):
        while os.read(changes, 1 << 16):
            continue
