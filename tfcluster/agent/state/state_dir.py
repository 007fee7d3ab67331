"""A cluster's state directory on a host: lock, journal, logs and runs."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tfcluster.agent.state.journal import Journal
from tfcluster.errors import ClusterError
from tfcluster.os.files import IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF, FileLock, Inotify
from tfcluster.os.unix_socket import NameLock
from tfcluster.paths import LOCK, SOCKET, STATE_HINT
from tfcluster.process_mark import lock_name
from tfcluster.protocol.codec import encode


class StateDir:
    """The state directory of one cluster on one host."""

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
        self.socket = path / SOCKET  # on which the agent listens
        self._lock_path = path / LOCK
        self._lock: FileLock | None = None
        self._name_lock: NameLock | None = None
        self._on_deleted: Callable[[], None] = lambda: None

    def make(self) -> None:
        """Create the directory so that only this user can access it, because logs may contain what programs print."""
        # Set the umask, because mkdir applies its mode only to the last directory of a path.
        previous = os.umask(0o077)
        try:
            for folder in (self.logs, self.runs):
                folder.mkdir(parents=True, exist_ok=True)
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

    def lock(self) -> int | None:
        """Lock the directory, so that this agent is the only one that uses it.

        There are two locks. The lock file excludes agents in other network namespaces, and on other machines that share
        the directory. If it is deleted, the agent exits (see `watch_lock`); until then, and if a signal has stopped
        that agent, the abstract socket keeps a second agent from starting.

        Return None if it is locked now; otherwise the pid of the agent that has locked it, 0 if it cannot be seen here.
        Raises ClusterError: the directory or the lock file cannot be created.
        """
        name = lock_name("agent", self.path)
        try:
            self._name_lock = NameLock.acquire(name)
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot be locked: {error.strerror}") from error
        if self._name_lock is None:
            return NameLock.holder(name)
        try:
            self.make()  # the previous agent may have removed the directory before it freed the name
            self._lock = _acquire(self._lock_path)
        except ClusterError:
            self.unlock()
            raise
        if self._lock is None:
            self.unlock()
            return 0
        return None

    def write_lock(self, secrets: Path) -> None:
        """Write the agent's pid and the path of its secrets to the lock file, for commands and for the end of a job."""
        assert self._lock is not None, "only who holds the lock writes to it"
        self._lock.write(encode({"pid": os.getpid(), "secrets": str(secrets)}))

    def watch_lock(self, on_deleted: Callable[[], None]) -> None:
        """Have the event loop call a function once the lock file, or a folder above it, was deleted or moved away.

        The kernel reports it: to look once a second would block the agent while the file system hangs, as NFS does.
        Raises OSError: the user has too many watches; a deleted lock file is not noticed then.
        """
        self._on_deleted = on_deleted
        self.check_lock()
        watch = Inotify(IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)
        try:
            for path in (self._lock_path, self.path, self.path.parent, self.path.parent.parent):
                with suppress(FileNotFoundError):
                    watch.add(path)
        except OSError:
            watch.close()
            raise

        def check() -> None:
            watch.read()
            self.check_lock()

        asyncio.get_running_loop().add_reader(watch, check)
        self.check_lock()  # it may have been deleted before it was watched

    def check_lock(self) -> None:
        """Call the function of `watch_lock` if the lock file was deleted or replaced.

        The kernel does not report what another machine does on a network file system.
        """
        if self._lock is not None and not self._lock.is_in_place():
            self._on_deleted()

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
        """Release the locks. Call this last: another agent may start from then on."""
        for lock in (self._lock, self._name_lock):
            if lock is not None:
                lock.release()
        self._lock = self._name_lock = None


def _acquire(path: Path) -> FileLock | None:
    """Acquire a lock file; return None if another agent has locked it."""
    try:
        return FileLock.acquire(path)
    except OSError as error:
        raise ClusterError(
            f"{path}: cannot create the lock file: {error.strerror}",
            hint="Make its folder writable: an agent cannot run without the lock.",
        ) from error
