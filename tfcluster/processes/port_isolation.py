"""Restrict who connects to the ports that a process opens: to this machine, or to the hosts of its cluster.

A TensorFlow server listens on every interface, whatever its address says, and runs any graph for anyone who connects.
What is sent to it between listen() and the moment at which it serves is queued and executed later, even if the
connection was cut. So each socket is restricted before it listens: listen() is trapped (see `seccomp`), a guard in
another thread or process restricts the caller's socket, and then has the kernel carry listen() out.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import stat
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tfcluster.processes import bpf, seccomp
from tfcluster.processes.netinfo import Address, interface_for
from tfcluster.processes.seccomp import Notification, SeccompError

#: What to do where ports cannot be restricted.
OPEN_HINT = (
    "`network: open` in the spec starts servers that every machine in reach can run code on: "
    "say so where a firewall, or the network itself, keeps strangers from them."
)
_LOOPBACK = "lo"
_INTERFACE_BYTES = 16  # IFNAMSIZ
_SYS_PIDFD_GETFD = 438  # on every architecture


class PortIsolationError(Exception):
    """Why it cannot be restricted who connects to a port."""


class ListenGuard:
    """Restricts every TCP socket on which trapped threads listen, before they do.

    Args:
        listener: The descriptor that `seccomp.trap_listen` returned.
        cluster: The IP addresses of all the cluster's hosts, this one's among them.
        refused: Called with the reason each time that a socket cannot be restricted; its listen() fails with EACCES.

    Attributes:
        ports: The ports that were restricted.
    """

    def __init__(self, listener: int, cluster: Collection[Address], refused: Callable[[str], None]) -> None:
        self.ports: set[int] = set()
        self._listener = listener
        self._cluster = cluster
        self._refused = refused

    def fileno(self) -> int:
        """Return the descriptor, which can be read when a call waits."""
        return self._listener

    def handle(self) -> None:
        """Wait for a call of listen(), restrict its socket, and let it go on or fail.

        Raises:
            OSError: No trapped thread is left.
        """
        notification = seccomp.receive(self._listener)
        if notification is None:
            return
        try:
            with _socket_of(self._listener, notification) as found:
                if found is not None:
                    restrict(found, self._cluster)
                    self.ports.add(found.getsockname()[1])
        except (PortIsolationError, OSError) as error:
            self._refused(str(error))
            seccomp.answer(self._listener, notification, errno.EACCES)
        else:
            seccomp.answer(self._listener, notification)


def isolate_this_process(cluster: Collection[Address], refused: Callable[[str], None]) -> ListenGuard:
    """Have a thread of this process restrict the sockets on which the calling thread, and all later ones, listen.

    For processes whose threads do not hold the interpreter's lock while they listen: the guard could not run meanwhile.

    Args:
        cluster: As in `ListenGuard`.
        refused: As in `ListenGuard`, called in the guard's thread.

    Raises:
        PortIsolationError: The kernel does not let this process trap listen().
    """
    trapped = threading.Event()
    guards: list[ListenGuard] = []

    def run() -> None:
        trapped.wait()
        with contextlib.suppress(OSError):  # the process ends
            while guards:
                guards[0].handle()

    # Before the trap: its own thread must not wait for itself.
    threading.Thread(target=run, name="port guard", daemon=True).start()
    try:
        guards.append(ListenGuard(trap_listen(), cluster, refused))
    finally:
        trapped.set()
    return guards[0]


def trap_listen() -> int:
    """Trap listen() as `seccomp.trap_listen` does.

    Raises:
        PortIsolationError: The kernel does not let this process.
    """
    try:
        return seccomp.trap_listen()
    except SeccompError as error:
        raise PortIsolationError(f"ports cannot be closed before they listen: {error}") from error


def check_support(cluster: Collection[Address]) -> None:
    """Try in a child process whether a server of a cluster can be isolated on this machine.

    Raises:
        PortIsolationError: It cannot.
        OSError: No process can be forked.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, _try(cluster).encode()[:4096])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        why = pipe.read().decode()
    os.waitpid(pid, 0)
    if why != "isolated":
        raise PortIsolationError(why or "the process that tried it has died")


def _try(cluster: Collection[Address]) -> str:
    """Listen on a port that is restricted; return `isolated`, or why it cannot be."""
    reasons: list[str] = []
    try:
        isolate_this_process(cluster, reasons.append)
        with socket.socket() as unused:
            unused.listen()
    except (PortIsolationError, OSError) as error:
        return reasons[0] if reasons else str(error)
    return "isolated"


def restrict(listener: socket.socket, cluster: Collection[Address]) -> None:
    """Have a TCP socket accept from this machine and the rest of its cluster only; once more changes nothing.

    Args:
        listener: The socket, on which listen() has not been called yet.
        cluster: The addresses of all the cluster's hosts, this one's among them.

    Raises:
        PortIsolationError: As for the one of the two below that is called.
    """
    if all(address.is_loopback for address in cluster):
        restrict_to_loopback(listener)
    else:
        restrict_to_peers(listener, cluster)


def restrict_to_loopback(listener: socket.socket) -> None:
    """Have a socket accept from this machine only, through loopback.

    Raises:
        PortIsolationError: The kernel refuses (it needs Linux 5.7, or root).
    """
    _bind(listener, _LOOPBACK)


def restrict_to_peers(listener: socket.socket, cluster: Collection[Address]) -> None:
    """Have a socket accept from a cluster's addresses only, and from this machine.

    By a filter on the socket; where this process may not attach one, by binding it to the interface that leads to the
    cluster's hosts alone, if there is one. It does not accept from loopback then, but from this machine's own
    address in the cluster all the same: the kernel counts such connections to the interface that has the address.

    Raises:
        PortIsolationError: The kernel refuses, or no interface leads to the cluster alone.
    """
    if bpf.is_locked(listener):
        return
    try:
        bpf.attach(listener, cluster)
    except PermissionError as error:
        interface = interface_for(cluster)
        if interface is None:
            raise PortIsolationError(
                f"the kernel lets only a process with CAP_NET_ADMIN choose who connects to {_named(listener)}, "
                "and no network interface leads to the cluster's hosts and nobody else"
            ) from error
        _bind(listener, interface)
    except OSError as error:
        raise PortIsolationError(f"the kernel refused a filter on {_named(listener)}: {error.strerror}") from error


def _bind(listener: socket.socket, interface: str) -> None:
    # An ordinary user binds a socket to a device once; who listens a second time finds it bound.
    device = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _INTERFACE_BYTES).rstrip(b"\0")
    if device == interface.encode():
        return
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except OSError as error:
        where = "loopback" if interface == _LOOPBACK else interface
        raise PortIsolationError(
            f"the kernel refused to bind {_named(listener)} to {where}: {error.strerror}"
        ) from error


def _named(listener: socket.socket) -> str:
    """Name the port of a socket; one that is bound to none yet is only tried, or gets its port by listen()."""
    port = listener.getsockname()[1]
    return f"port {port}" if port else "the servers' ports"


@contextlib.contextmanager
def _socket_of(listener: int, notification: Notification) -> Iterator[socket.socket | None]:
    """Give a copy of the socket that a trapped thread listens on; None for what no network reaches.

    Raises:
        OSError: This process may not take it.
    """
    pidfd = os.pidfd_open(_process_of(notification.tid))
    try:
        if not seccomp.is_waiting(listener, notification):  # the pid may belong to another process by now
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        fd = _pidfd_getfd(pidfd, notification.fd)
    finally:
        os.close(pidfd)
    if fd is None or not stat.S_ISSOCK(os.fstat(fd).st_mode):
        if fd is not None:
            os.close(fd)
        yield None  # the kernel has an error of its own for it
        return
    with socket.socket(fileno=fd) as copy:
        yield copy if copy.family in (socket.AF_INET, socket.AF_INET6) else None


def _process_of(tid: int) -> int:
    """Return the pid of the process that a thread belongs to; a pidfd is of a process."""
    for line in Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))


def _pidfd_getfd(pidfd: int, fd: int) -> int | None:
    """Copy a descriptor of another process, None where it has none of that number: pidfd_getfd(2), which Python lacks.

    Raises:
        OSError: This process may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    copy = int(libc.syscall(_SYS_PIDFD_GETFD, pidfd, fd, 0))
    if copy < 0:
        number = ctypes.get_errno()
        if number == errno.EBADF:
            return None
        raise OSError(number, os.strerror(number))
    return copy
