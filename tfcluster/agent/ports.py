"""TCP ports for tasks: which are free, who holds a taken one, and keeping a chosen one from others."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tfcluster.agent.file_lock import FileLock
from tfcluster.errors import ClusterError
from tfcluster.paths import locks_folder
from tfcluster.process_handle import network_namespace

#: TensorFlow's customary first port; counting up from it stays below the kernel's ephemeral range (32768).
FIRST_PORT = 2222
_LAST_PORT = 32767

# A line for each socket: its number, its address and port in hexadecimal digits, those of its peer, its state and more.
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_UNSEEN = "a process that this user cannot see"
# Every task of a cluster may be dialled from every host at once.
_BACKLOG = 1024


class PortAllocator:
    """The ports that an agent holds for its tasks.

    A held port is bound and not listened on: nobody who connects gets an answer from it, and the kernel gives it to
    nobody else, also while a task is between two processes. SO_REUSEADDR, set after the bind, lets the task's own
    server (gRPC sets it too) bind beside it. As that would let in another agent that finds connections lingering on
    the port, a user's agents keep each other out by a lock file for the port, in a folder that only this user can
    enter. Its name has the network namespace, to which the port belongs.

    An agent that adopts a server finds it listening, and nothing can bind beside a listening socket but with
    SO_REUSEPORT on both, which would open the port to every gRPC server of this user: they set it too. So the port
    of an adopted server is reserved, by the lock alone, and held as soon as the server has ended.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}
        self._locks: dict[int, FileLock] = {}
        self._listeners = 0

    def reserve(self, port: int) -> None:
        """Keep other agents from a port on which a server of ours listens.

        Raises:
            OSError: The lock file cannot be created: the system has no descriptor left for it, or the disk is full.
        """
        if port not in self._locks and (lock := FileLock.acquire(_lock_path(port))) is not None:
            self._locks[port] = lock

    def restore_locks(self) -> None:
        """Create the lock files again that were removed, as a cleaner of temporary files does.

        Raises:
            OSError: One cannot be created.
        """
        for port, lock in list(self._locks.items()):
            if not (lock.path == _lock_path(port) and lock.is_in_place()):
                new = FileLock.acquire(_lock_path(port))
                if new is not None:  # else another agent was faster; the port itself is still bound here
                    lock.release()
                    self._locks[port] = new

    def hold(self, port: int) -> bool:
        """Take the port if nobody has it.

        Connections of an earlier server may linger on it (TIME_WAIT, for a minute): a cluster that went down may
        come up again at once, and at the same ports.

        Raises:
            OSError: For another reason than somebody having it, as a port that needs privileges.
        """
        if port in self._held:
            return True
        known = port in self._locks
        self.reserve(port)
        if port not in self._locks:
            return False
        holder = None
        try:
            holder = _bind(port, reuse=False)
            if holder is None and _is_known(port):
                holder = _bind(port, reuse=True)
        finally:
            if holder is None and not known:
                self._locks.pop(port).release()
        if holder is None:
            return False
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held[port] = holder
        return True

    def choose(self, count: int, without: Collection[int] = ()) -> Iterator[int]:
        """Hold and give `count` free ports, counting up.

        Args:
            count: How many.
            without: Ports to pass by, whether or not they are free.

        Raises:
            ClusterError: There are not so many free ports.
        """
        passed = {*self._held, *without}
        candidates = (port for port in range(FIRST_PORT, _LAST_PORT + 1) if port not in passed)
        for _ in range(count):
            port = next((port for port in candidates if self.hold(port)), None)
            if port is None:
                raise ClusterError(f"no free port between {FIRST_PORT} and {_LAST_PORT}")
            yield port

    @contextmanager
    def listening(self, ports: Collection[int]) -> Iterator[list[int]]:
        """Let connections come to held ports for a while, and give those where they can.

        They wait in the kernel's queue and are reset at the end: nobody accepts one, and nothing is served.
        """
        self._listeners += 1
        try:
            yield [port for port in sorted(ports) if port in self._held and _listen(self._held[port])]
        finally:
            self._listeners -= 1
            if not self._listeners:
                self.quiet()

    def quiet(self) -> None:
        """Listen on no port any more: a server could not listen there as well. They are held as before."""
        for holder in self._held.values():
            with suppress(OSError):  # ENOTCONN: it does not listen
                holder.shutdown(socket.SHUT_RDWR)  # of a listening socket this undoes only the listening

    def keep_only(self, ports: Collection[int]) -> None:
        """Give all ports back but these."""
        for port in self._held.keys() - set(ports):
            self._held.pop(port).close()
        for port in self._locks.keys() - set(ports):
            self._locks.pop(port).release()

    @property
    def held(self) -> frozenset[int]:
        """The ports that are held."""
        return frozenset(self._held)


def _lock_path(port: int) -> Path:
    """The file by whose lock this user's agents keep each other from a port of this network namespace.

    Raises:
        OSError: There is no folder for it.
    """
    try:
        return locks_folder() / f"port-{network_namespace()}-{port}.lock"
    except ClusterError as error:
        raise OSError(errno.EACCES, error.message) from error


def port_owner(port: int) -> str:
    """In words who listens on a port: the process, as far as this user may see it."""
    found = psutil.net_connections(kind="tcp")
    listening = [each for each in found if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port]
    if not listening:
        return "a process that does not listen on it, as another cluster's agent while its server restarts"
    pid = listening[0].pid
    try:
        return f"process {pid} ({' '.join(psutil.Process(pid).cmdline()).strip()[:80]})" if pid else _UNSEEN
    except psutil.Error:
        return _UNSEEN


def _is_known(port: int) -> bool:
    """Whether a socket of this machine listens on the port or has a connection on it; one that is only bound has not.

    Read from the kernel's tables: psutil would also look through the descriptors of every process, for whose it is.
    """
    suffix = f":{port:04X}"
    for table in _TABLES:
        with suppress(FileNotFoundError), open(table) as sockets:  # a kernel without IPv6 has only one
            if any(line.split(maxsplit=2)[1].endswith(suffix) for line in sockets):
                return True
    return False


def _listen(holder: socket.socket) -> bool:
    try:
        holder.listen(_BACKLOG)
    except OSError:  # a server of ours listens beside it
        return False
    return True


def _bind(port: int, *, reuse: bool) -> socket.socket | None:
    """A socket bound to the port on every address, as TensorFlow's servers bind; None when it is taken."""
    try:
        holder = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:  # a kernel without IPv6
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        holder.bind(("", port))
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return holder
