"""The log writer: the process that copies the tasks' output to rotating logs and adds a timestamp to each line.

It outlives the agent, as the tasks do, so that their output takes bounded disk space even while no agent is running.
All of its state is in the files, so it can be killed at any moment. The agent then forks another log writer, which
first kills any previous one that is still alive.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from tfcluster import settings
from tfcluster.os.files import IN_MODIFY, FileLock, Inotify
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.logs.log_buffer import LogBuffer
from tfcluster.processes.logs.rotating_log import RotatingLog

_LOCK = ".lock"


def run(log_buffers: Path, logs: Path, size: int, count: int, needed: Path, agent: socket.socket) -> None:
    """Run the log writer until the agent has exited and the file that marks running tasks has been removed.

    `size` is the maximum size of each file of a log in bytes, and `count` the number of files. `needed` exists as long
    as tasks may be running without an agent. End of file on `agent` means that the agent has exited.
    """
    writer = LogWriter(log_buffers, logs, size, count)
    poll = select.poll()
    changes = _watch(log_buffers)
    if changes is not None:
        poll.register(changes, select.POLLIN)
    poll.register(agent, select.POLLIN)
    orphaned = False
    while not orphaned or needed.exists():
        if changes is not None:
            changes.read()
        while writer.drain_once():
            continue
        if not writer.is_still_owner():
            return
        time.sleep(settings.LOG_WRITER_ROUND_SECONDS)
        timeout: float | None = settings.LOG_WRITER_ORPHAN_POLL_SECONDS if orphaned or writer.is_failing else None
        for fd, _ in poll.poll(
            1000 * settings.LOG_WRITER_POLL_SECONDS if changes is None else timeout and 1000 * timeout
        ):
            if fd == agent.fileno():
                orphaned = True
                poll.unregister(agent)
    writer.close()


def _watch(folder: Path) -> Inotify | None:
    """Watch a folder for files that are written to; return None if the system cannot watch it."""
    try:
        inotify = Inotify(IN_MODIFY)
    except OSError:
        return None
    try:
        inotify.add(folder)
    except OSError:
        inotify.close()
        return None
    return inotify


class LogWriter:
    """Writes the rotating logs of a cluster's tasks on this host.

    There is one log writer at a time: it holds a lock, and kills the previous holder when it takes the lock.
    """

    def __init__(self, log_buffers: Path, logs: Path, size: int, count: int) -> None:
        self.is_failing = False  # some output could not be written in the last round. The next round tries again
        self._folder = log_buffers
        self._logs = logs
        self._limits = size, count
        self._log_buffers: dict[str, LogBuffer] = {}
        self._lock = _take_over(log_buffers / _LOCK)

    def drain_once(self, *, ended: bool = False) -> bool:
        """Copy a block of each task's output to its log.

        With `ended`, the tasks will print nothing more, so a last line without a newline is treated as complete. Return
        whether there may be more to copy.
        """
        failed, more = False, False
        for name in self._names():
            if name not in self._log_buffers:
                log = RotatingLog(self._logs / f"{name}.log", *self._limits)
                self._log_buffers[name] = LogBuffer(self._folder / name, log)
            try:
                more = self._log_buffers[name].drain(ended=ended) or more
            except OSError as error:  # such as a full disk: the output stays in the capture buffer
                if not self.is_failing:
                    print(f"{name}: cannot write its output: {error}", file=sys.stderr, flush=True)
                failed = True
        self.is_failing = failed
        return more

    def is_still_owner(self) -> bool:
        """Return whether the lock file on disk is still the one that this process holds.

        If the folder has been deleted, the next log writer would not find this process by the lock.
        """
        return self._lock.is_in_place()

    def close(self) -> None:
        """Copy all remaining output, after all tasks have exited, and remove the capture buffers.

        Output that cannot be written, such as on a full disk, is lost.
        """
        while self.drain_once(ended=True):
            continue
        for name in self._names():
            (self._folder / name).unlink()
        self._lock.release()
        with suppress(OSError):
            self._folder.rmdir()

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name != _LOCK]
        except FileNotFoundError:
            return []


def _take_over(path: Path) -> FileLock:
    """Kill the process that holds the lock, if there is one, and take the lock over."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    process = ProcessHandle.from_pid(os.getpid())
    assert process is not None, "this process lives"
    while (lock := FileLock.acquire(path)) is None:
        # A process that has just taken the lock may not have written its pid yet; one that exits removes the file.
        with suppress(FileNotFoundError, TypeError, ValueError):
            holder = ProcessHandle(*map(int, path.read_bytes().split()))
            if holder != process:
                holder.kill()
        time.sleep(settings.LOG_WRITER_LOCK_SECONDS)
    lock.write(b"%d %d\n" % (process.pid, process.start_time))
    return lock
