"""A cluster's state folder on a host: its lock, journal, logs and runs."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from tfcluster.agent.journal import Journal
from tfcluster.errors import ClusterError
from tfcluster.places import LOCK
from tfcluster.protocol.framing import encode


class StateFolder:
    """The folder of one cluster on one host.

    Attributes:
        path: The folder.
        journal: The record of what is up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal(path / "journal.json")
        self._lock_path = path / LOCK
        self._lock: int | None = None

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
                hint="Set XDG_STATE_HOME to a folder that you can write to.",
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

        The kernel holds the lock and lets go of it with the process, however that ends.
        """
        while True:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The agent before us may have removed the file while we were opening it.
                if os.path.samestat(os.fstat(fd), os.stat(self._lock_path)):
                    self._lock = fd
                    return True
            except BlockingIOError:
                os.close(fd)
                return False
            except FileNotFoundError:
                pass
            os.close(fd)

    def tell_where(self, socket_path: Path) -> None:
        """Say in the lock file who holds it and where they listen.

        A command may see another XDG_RUNTIME_DIR than the one that the agent was started with.
        """
        assert self._lock is not None, "only who holds the lock writes to it"
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, encode({"pid": os.getpid(), "socket": str(socket_path)}), 0)

    def leave(self) -> None:
        """Remove what only a running cluster has; logs and runs stay."""
        self.journal.remove()
        for log in (self.agent_log, self.interpreter_log):
            with suppress(FileNotFoundError):
                if not log.stat().st_size:
                    log.unlink()
        for folder in (self.logs, self.runs):
            with suppress(OSError):  # it holds something worth keeping
                folder.rmdir()
        self._lock_path.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()
            self.path.parent.rmdir()
