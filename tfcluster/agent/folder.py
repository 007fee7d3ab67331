"""A cluster's state folder on a host: its lock, journal, logs and runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tfcluster.agent.file_lock import FileLock
from tfcluster.agent.journal import Journal
from tfcluster.errors import ClusterError
from tfcluster.places import LOCK, locks_folder
from tfcluster.process import network_namespace
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
        self._lock: FileLock | None = None
        self._second_lock: FileLock | None = None
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
                if not folder.is_dir() and not folder.is_symlink():  # a link may lead to a disk that is not mounted
                    folder.unlink(missing_ok=True)
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

        There are two lock files. The one in the folder would go with it when somebody deletes the folder, and a second
        agent would get in; the second one is elsewhere, and keeps it out. That alone would not keep apart agents on
        two machines, or in two network namespaces, that share the folder.

        Raises:
            ClusterError: A lock file cannot be created.
        """
        second = _acquire(self._second_lock_path())
        if second is None:
            return False
        try:
            self.make()  # the agent before us may have removed it until now
            lock = _acquire(self._lock_path)
        except ClusterError:
            second.release()
            raise
        if lock is None:
            second.release()
            return False
        self._lock, self._second_lock = lock, second
        return True

    def _second_lock_path(self) -> Path:
        """The lock file outside the folder; its name has the network namespace, as containers may share /tmp.

        Raises:
            ClusterError: There is no private folder for it.
        """
        place = f"{os.getuid()}:{network_namespace()}:{os.path.realpath(self.path)}"
        return locks_folder() / f"agent-{hashlib.sha256(os.fsencode(place)).hexdigest()[:24]}.lock"

    def restore_second_lock(self) -> None:
        """Create the lock file outside the folder again if it was removed, as a cleaner of temporary files does.

        Raises:
            ClusterError: It cannot be created, or another agent was faster.
        """
        assert self._second_lock is not None, "only the agent that holds the lock looks after it"
        path = self._second_lock_path()
        if path == self._second_lock.path and self._second_lock.is_in_place():
            return
        second = _acquire(path)
        if second is None:
            raise ClusterError(f"{path}: another agent has locked it")
        self._second_lock.release()
        self._second_lock = second

    def tell_where(self, socket_path: Path) -> None:
        """Say in the lock file who holds it and where they listen.

        A command may see another XDG_RUNTIME_DIR than the one that the agent was started with.
        """
        assert self._lock is not None, "only who holds the lock writes to it"
        self._socket_path = socket_path
        self._lock.write(encode({"pid": os.getpid(), "socket": str(socket_path)}))

    def mend(self) -> bool:
        """Make the folder again if somebody deleted it or a part of it; whether it had to be.

        What the deleted journal and logs held is lost; whoever holds the record writes it again.

        Raises:
            ClusterError: It cannot be made.
        """
        if self._lock is None or (self._lock.is_in_place() and self.logs.is_dir() and self.runs.is_dir()):
            return False
        self.make()
        if not self._lock.is_in_place():
            lock = _acquire(self._lock_path)
            if lock is None:
                raise ClusterError(f"{self._lock_path}: another agent has locked it")
            self._lock.close()
            self._lock = lock
            if self._socket_path is not None:
                self.tell_where(self._socket_path)
        self.mended()
        return True

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
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        with suppress(OSError):
            self.path.rmdir()
            self.path.parent.rmdir()
        self.unlock()

    def unlock(self) -> None:
        """Release the locks and remove their files: last of all, as another agent may begin now."""
        for lock in (self._lock, self._second_lock):
            if lock is not None:
                lock.release()
        self._lock = self._second_lock = None


def _acquire(path: Path) -> FileLock | None:
    """Lock a lock file; None when another agent has.

    Raises:
        ClusterError: It cannot be created.
    """
    try:
        return FileLock.acquire(path)
    except OSError as error:
        raise ClusterError(
            f"{path}: cannot create the lock file: {error.strerror}",
            hint="See to it that its folder can be written to; no agent can run without.",
        ) from error
