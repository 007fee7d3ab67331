"""A cluster's state folder on a host: its lock, journal, logs and runs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tfcluster.agent import names
from tfcluster.agent.journal import Journal
from tfcluster.errors import ClusterError
from tfcluster.places import LOCK
from tfcluster.protocol.framing import encode


class StateFolder:
    """The folder of one cluster on one host.

    Attributes:
        path: The folder.
        journal: The record of what is up.
        mended: Called when the folder was made anew after somebody had deleted it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal(path / "journal.json")
        self.mended: Callable[[], None] = lambda: None
        self._lock_path = path / LOCK
        self._lock: int | None = None
        self._name: socket.socket | None = None
        self._socket_path: Path | None = None

    def make(self) -> None:
        """Make the folder, for this user alone: logs may hold what programs print.

        Raises:
            ClusterError: It cannot be made.
        """
        # By the umask, because mkdir gives its mode only to the last folder of a path.
        previous = os.umask(0o077)
        try:
            for folder in (self.logs, self.runs):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterError(
                f"{error.filename}: cannot make the state folder: {error.strerror}",
                hint="Set XDG_STATE_HOME (for another host `state:` in the spec) to a folder that you can write to.",
            ) from error
        finally:
            os.umask(previous)

    @property
    def logs(self) -> Path:
        """Where each task's log is."""
        return self.path / "logs"

    @property
    def runs(self) -> Path:
        """Where each run has its folder."""
        return self.path / "runs"

    @property
    def agent_log(self) -> Path:
        """What the agent itself has to say: tracebacks, when it fails."""
        return self.logs / "agent.log"

    @property
    def interpreter_log(self) -> Path:
        """What TensorFlow prints while the warm interpreter imports it."""
        return self.logs / "interpreter.log"

    @property
    def events(self) -> Path:
        """What happened to the cluster; see `history`."""
        return self.logs / "events.log"

    def log_of(self, short: str) -> Path:
        """The newest file of a task's log, by its short name."""
        return self.logs / f"{short}.log"

    @property
    def spools(self) -> Path:
        """Where the tasks' processes print, while there are any."""
        return self.path / "spools"

    def spool_of(self, short: str) -> Path:
        """What a task's process prints into, by the task's short name."""
        return self.spools / short

    def logged_tasks(self) -> list[str]:
        """Short names of the tasks that have a log, sorted."""
        return sorted({path.name.rpartition(".log")[0] for path in self.logs.glob("*:*.log*")})

    def lock(self) -> bool:
        """Become the one agent of this folder; False when there is one.

        The kernel holds a name and a lock, and lets go of them with the process, however that ends. The lock alone
        would go with its file when somebody deletes the folder; the name alone would not keep apart agents in
        two network namespaces that share the folder. The agent that has the name is called, for the
        folder that was made for us may be the one that it lacks.

        Raises:
            ClusterError: The lock file cannot be made.
        """
        name = names.take(self.agent_name)
        if name is None:
            names.call(self.agent_name)
            return False
        try:
            lock = self._lock_file()
        except ClusterError:
            name.close()
            raise
        if lock is None:
            name.close()
            return False
        self._lock, self._name = lock, name
        return True

    @property
    def calls(self) -> socket.socket:
        """Readable when another process has tried to become the agent of this folder, with a datagram each time."""
        assert self._name is not None, "only who holds the lock is called"
        return self._name

    def tell_where(self, socket_path: Path) -> None:
        """Say in the lock file who holds it and where they listen.

        A command may see another XDG_RUNTIME_DIR than the one that the agent was started with.
        """
        assert self._lock is not None, "only who holds the lock writes to it"
        self._socket_path = socket_path
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, encode({"pid": os.getpid(), "socket": str(socket_path)}), 0)

    def mend(self) -> bool:
        """Make the folder again if somebody deleted it or a part of it; whether it had to be.

        What the deleted journal and logs held is lost; whoever holds the record writes it again.

        Raises:
            ClusterError: It cannot be made.
        """
        if self._lock is None or (self._is_locked(self._lock) and self.logs.is_dir() and self.runs.is_dir()):
            return False
        self.make()
        if not self._is_locked(self._lock):
            lock = self._lock_file()
            if lock is None:
                raise ClusterError(f"{self._lock_path}: another agent has locked it")
            os.close(self._lock)
            self._lock = lock
            if self._socket_path is not None:
                self.tell_where(self._socket_path)
        self.mended()
        return True

    def _lock_file(self) -> int | None:
        """A descriptor that holds the lock of the lock file; None when another one does.

        Raises:
            ClusterError: The file cannot be made.
        """
        while True:
            try:
                fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ClusterError(
                    f"{self._lock_path}: cannot make the lock file: {error.strerror}",
                    hint="See to it that its folder can be written to; no agent can run without.",
                ) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The agent before us may have removed the file while we were opening it.
                if self._is_locked(fd):
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            os.close(fd)

    def _is_locked(self, fd: int) -> bool:
        """Whether what a descriptor has locked is what others find under the lock file's name."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._lock_path))
        except OSError:
            return False

    @property
    def agent_name(self) -> str:
        """The name by which agents of this folder keep each other out."""
        place = f"{os.getuid()}:{os.path.realpath(self.path)}"
        return f"agent-{hashlib.sha256(os.fsencode(place)).hexdigest()[:24]}"

    def leave(self) -> None:
        """Remove what only a running cluster has; logs and runs stay."""
        self.journal.remove()
        for log in (self.agent_log, self.interpreter_log):
            with suppress(OSError):  # it was never made, or cannot be removed and harms nobody
                if not log.stat().st_size:
                    log.unlink()
        for folder in (self.logs, self.runs):
            with suppress(OSError):  # it holds something worth keeping
                folder.rmdir()
        with suppress(OSError):  # somebody deleted it, or may not
            self._lock_path.unlink()
        with suppress(OSError):
            self.path.rmdir()
            self.path.parent.rmdir()
