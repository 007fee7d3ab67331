"""The process of a cluster's agent on this machine: continue it if a signal has stopped it, or end it.

Tasks and runs continue when their agent ends, and the next agent adopts them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tfcluster import settings
from tfcluster.control_characters import escape_control_characters
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.file_lock import FileLock
from tfcluster.os.process_handle import ProcessHandle, is_frozen, send_signal, tracer_of
from tfcluster.paths import state_folder
from tfcluster.process_mark import is_marked, mark_of
from tfcluster.runtime_dir import locks_dir


def print_note(text: str) -> None:
    """Print a line to standard error."""
    print(escape_control_characters(text), file=sys.stderr, flush=True)


class AgentProcess:
    """The process that serves a cluster on this machine, by the pid that the socket or the lock file names.

    `note` is called with a line for the user about each action on the process.
    """

    def __init__(self, cluster: str, host: str, pid: int, note: Callable[[str], None] = print_note) -> None:
        self.cluster = cluster
        self.host = host
        self.pid = pid
        self._note = note
        self._process: ProcessHandle | None = None
        with contextlib.suppress(OSError):  # no descriptor is available to read /proc
            self._process = ProcessHandle.from_pid(pid)

    def is_stopped(self) -> bool:
        """Return whether a signal, such as SIGSTOP, or a debugger has stopped the process."""
        return is_frozen(self.pid) and self._is_agent()

    def _is_agent(self) -> bool:
        """Return whether the process runs and is the agent: after a reboot, its pid may be that of any process."""
        mark = mark_of(state_folder(self.cluster, self.host))
        try:
            return self._process is not None and self._process.is_alive() and is_marked(self.pid, mark)
        except OSError:  # it has exited, or belongs to another user
            return False

    def tracer_error(self) -> ClusterError | None:
        """Return the error that a debugger traces the process, which must not be signalled then; None if none does."""
        tracer = tracer_of(self.pid)
        if tracer is None:
            return None
        return ClusterError(
            f"the agent of {self.cluster!r} (pid {self.pid}) is traced by process {tracer} and does not answer",
            hint=f"Detach the debugger, or stop it: `kill {tracer}`.",
            exit_code=ExitCode.UNREACHABLE,
        )

    def continue_if_stopped(self) -> None:
        """Continue the process if a signal has stopped it; if it is stopped again at once, end it.

        Raises ClusterError if a debugger has stopped the process, or it cannot be ended.
        """
        if not self.is_stopped():
            return
        if self.tracer_error() is not None:
            self._refuse_if_held()
            return
        with self.lock():
            pidfd = self._process.open() if self._process is not None and self.is_stopped() else None
            if pidfd is None:  # another command has continued or ended it
                return
            send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)
            time.sleep(settings.AGENT_CONTINUE_SECONDS)
            action = "continued"
            if self.is_stopped():
                self.end(settings.AGENT_END_SECONDS)
                action = "replaced"
            self._note(f"the agent of {self.cluster!r} was stopped (pid {self.pid}): {action}")

    def _refuse_if_held(self) -> None:
        """Raise the error for a traced process unless it runs now and then: strace stops it at each system call."""
        deadline = time.monotonic() + settings.AGENT_CONTINUE_SECONDS
        while self.is_stopped():
            if time.monotonic() >= deadline and (error := self.tracer_error()) is not None:
                raise error
            time.sleep(settings.PROCESS_EXIT_POLL_SECONDS)

    def end(self, grace: float) -> None:
        """End the process, after `grace` seconds by SIGKILL, and wait until it has exited. The caller holds `lock`.

        Raises ClusterError if a debugger traces it, it is not the agent, or it does not exit.
        """
        if self._process is None or not self._process.is_alive():
            return
        if (error := self.tracer_error()) is not None:
            raise error
        if not self._is_agent():
            raise ClusterError(f"process {self.pid} is not the agent of {self.cluster!r}")
        if self._process.terminate(grace, settings.AGENT_EXIT_SECONDS):
            return
        raise ClusterError(
            f"the agent of {self.cluster!r} (pid {self.pid}) has not exited after SIGKILL",
            hint=f"See what blocks it: `cat /proc/{self.pid}/stack`.",
            exit_code=ExitCode.UNREACHABLE,
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock out other commands that would continue or end the agent; after a wait, check whether it was replaced."""
        path = locks_dir() / f"replace-{mark_of(state_folder(self.cluster, self.host))}.lock"
        deadline = time.monotonic() + settings.AGENT_REPLACE_SECONDS
        while (lock := _try_to_lock(path)) is None:
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"another command is replacing the agent, for more than {settings.AGENT_REPLACE_SECONDS:g} s",
                    hint=f"`fuser {path}` shows its pid.",
                    exit_code=ExitCode.UNREACHABLE,
                )
            time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)
        try:
            yield
        finally:
            lock.release()


def _try_to_lock(path: Path) -> FileLock | None:
    try:
        return FileLock.acquire(path)
    except OSError as error:
        raise ClusterError(f"{path}: cannot create the lock file: {error.strerror}") from error
