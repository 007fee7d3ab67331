"""A cluster's state directory on a host: lock, journal, logs and runs."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tfcluster.agent.state.journal import Journal
from tfcluster.errors import ClusterError
from tfcluster.os import procfs
from tfcluster.os.files import FileLock
from tfcluster.paths import LOCK, STATE_HINT
from tfcluster.protocol.codec import encode
from tfcluster.runtime_dir import locks_dir


class StateDir:
    """The state directory of one cluster on one host.

    `on_recreated` is called after the directory was recreated because it, or a part of it, had been deleted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal(path / "journal.json")
        self.logs = path / "logs"  # the directory of the tasks' logs
        self.runs = path / "runs"  # has a directory for each run
        self.files = path / "files"  # the folder that servers run in, unless they run in that of the spec
        self.profiles = path / "profiles"  # the directory to which servers write traces, until a command has them
        self.log_buffers = path / "log-buffers"  # capture buffers, to which tasks print; exists only while they run
        self.forwarding = path / "forwarding.json"  # what the forwarder does; exists only while there is one
        self.forwarder_process = path / "forwarder.json"  # which process is the forwarder
        # The newest file of each log:
        self.agent_log = self.logs / "agent.log"  # see `AgentLogHandler`
        self.agent_stderr = self.logs / "agent.stderr"  # what libraries in C print in the agent's process
        self.events = self.logs / "events.log"  # the cluster's events; see `EventLog`
        self.fork_server_log = self.logs / "fork-server.log"  # what TensorFlow prints while it is imported
        self.forwarder_log = self.logs / "forwarder.log"  # see `ForwarderLog`
        self.forwarder_stderr = self.logs / "forwarder.stderr"  # what Python prints if the forwarder fails
        self.on_recreated: Callable[[], None] = lambda: None
        self._lock_path = path / LOCK
        self._lock: FileLock | None = None
        self._second_lock: FileLock | None = None
        self._socket_path: Path | None = None

    def make(self) -> None:
        """Create the directory so that only this user can access it, because logs may contain what programs print."""
        # Set the umask, because mkdir applies its mode only to the last directory of a path.
        previous = os.umask(0o077)
        try:
            for folder in (self.logs, self.runs):
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except FileExistsError:
                    if folder.is_symlink():  # it may lead to a disk that is not mounted
                        raise
                    with suppress(IsADirectoryError):  # another agent, which starts now too, has made it
                        folder.unlink(missing_ok=True)
                    folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ClusterError(
                f"{error.filename}: cannot make the state folder: {error.strerror}",
                hint=STATE_HINT,
            ) from error
        finally:
            os.umask(previous)

    def log_of(self, short: str) -> Path:
        """Return the path of the newest file of a task's log."""
        return self.logs / f"{short}.log"

    def log_buffer_of(self, short: str) -> Path:
        """Return the path of the capture buffer to which a task's process prints."""
        return self.log_buffers / short

    def logged_tasks(self) -> list[str]:
        """Return the short names of the tasks that have a log, sorted."""
        return sorted({path.name.rpartition(".log")[0] for path in self.logs.glob("*:*.log*")})

    def lock(self) -> bool:
        """Lock the directory, so that this agent is the only one that uses it.

        There are two lock files. The one inside the directory disappears if the directory is deleted, and a second
        agent could then start; the second lock file, outside the directory, prevents that. The second one alone would
        not exclude agents on two machines, or in two network namespaces, that share the directory.

        Return False if another agent has locked the directory.
        """
        second = _acquire(self._second_lock_path())
        if second is None:
            return False
        try:
            self.make()  # the previous agent may have removed the directory before it unlocked
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
        """Return the path of the lock file outside the directory.

        Its name contains the network namespace, because containers may share /tmp. Raises ClusterError: there is no
        private directory for the lock file.
        """
        place = f"{os.getuid()}:{procfs.namespace('net')}:{os.path.realpath(self.path)}"
        return locks_dir() / f"agent-{hashlib.sha256(os.fsencode(place)).hexdigest()[:24]}.lock"

    def restore_second_lock(self) -> None:
        """Recreate the lock file outside the directory if it was removed, for example by a cleaner of temporary files.

        Raises ClusterError: the lock file cannot be created, or another agent has locked it in the meantime.
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

    def publish_socket(self, socket_path: Path) -> None:
        """Write the agent's pid and the path of its socket to the lock file.

        Commands read the path there because their XDG_RUNTIME_DIR may differ from the agent's.
        """
        assert self._lock is not None, "only who holds the lock writes to it"
        self._socket_path = socket_path
        self._lock.write(encode({"pid": os.getpid(), "socket": str(socket_path)}))

    def repair(self) -> bool:
        """Recreate missing parts of the state directory.

        The content of a deleted journal or log is lost; the caller must write the journal again.

        Return whether anything was recreated. Raises ClusterError: the directory cannot be created, or another agent
        has locked it.
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
                self.publish_socket(self._socket_path)
        self.on_recreated()
        return True

    def clean_up(self) -> None:
        """Remove everything that only a running cluster needs, and unlock the directory; logs and runs stay."""
        self.journal.remove()
        for log in (self.agent_log, self.agent_stderr, self.fork_server_log, self.forwarder_log, self.forwarder_stderr):
            with suppress(OSError):  # the file does not exist, or cannot be removed and does no harm
                if not log.stat().st_size:
                    log.unlink()
        shutil.rmtree(self.profiles, ignore_errors=True)  # what an agent has left that was killed
        for folder in (self.logs, self.runs, self.files):
            with suppress(OSError):  # the directory is not empty, or does not exist: keep it
                folder.rmdir()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        with suppress(OSError):
            self.path.rmdir()
            self.path.parent.rmdir()
        self.unlock()

    def unlock(self) -> None:
        """Release the locks and remove their files. Call this last: another agent may start from then on."""
        for lock in (self._lock, self._second_lock):
            if lock is not None:
                lock.release()
        self._lock = self._second_lock = None


def _acquire(path: Path) -> FileLock | None:
    """Acquire a lock file; return None if another agent has locked it."""
    try:
        return FileLock.acquire(path)
    except OSError as error:
        raise ClusterError(
            f"{path}: cannot create the lock file: {error.strerror}",
            hint="Make its folder writable: an agent cannot run without the lock.",
        ) from error
