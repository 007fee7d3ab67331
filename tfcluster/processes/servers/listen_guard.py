"""Listen guards: trap each call of listen() of a process, and restrict the socket before the call takes effect.

Requests that arrive between listen() and the moment at which a TensorFlow server starts to serve are queued and
executed later, even if the connection has been cut meanwhile. Each socket is therefore restricted before it listens:
listen() is trapped (see `seccomp`), a guard in another thread or process restricts the caller's socket (see
`port_isolation`), and only then does the guard call listen() on it, for the caller.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
from collections.abc import Callable, Collection, Iterator

from tfcluster.os import libc, procfs, seccomp
from tfcluster.os.ask_in_fork import ask_in_fork
from tfcluster.os.network import Address
from tfcluster.os.seccomp import Notification
from tfcluster.processes.servers import port_isolation
from tfcluster.processes.servers.port_isolation import PortIsolationError

_SYS_PIDFD_GETFD = 438  # on every architecture


class ListenGuard:
    """Restricts every TCP socket on which trapped threads call listen(), before the call takes effect.

    Args:
        listener: The descriptor that `trap_listen` returned.
        cluster: The IP addresses of all the cluster's hosts, including this one.
        on_refused: Called with the reason each time a socket cannot be restricted. Its listen() then fails with EACCES.
    """

    def __init__(self, listener: int, cluster: Collection[Address], on_refused: Callable[[str], None]) -> None:
        self.ports: set[int] = set()
        self._listener = listener
        self._cluster = cluster
        self._on_refused = on_refused

    def fileno(self) -> int:
        """Return the descriptor of the trap, which is readable when a call is waiting."""
        return self._listener

    def handle(self) -> None:
        """Wait for a call of listen(), restrict its socket and listen on it; if that cannot be done, the call fails.

        Raises:
            OSError: All trapped threads have exited.
        """
        notification = seccomp.receive(self._listener)
        if notification is None:
            return
        try:
            with _duplicate(self._listener, notification) as fd:
                error = self._listen(fd, notification.backlog)
        except (PortIsolationError, OSError) as refused:
            self._on_refused(str(refused))
            seccomp.answer(self._listener, notification, errno.EACCES)
        else:
            seccomp.answer(self._listener, notification, error)

    def _listen(self, fd: int, backlog: int) -> int:
        """Restrict a socket that a network can reach, and listen on it; return the errno of listen(), or 0."""
        if fd >= 0 and stat.S_ISSOCK(os.fstat(fd).st_mode):
            listening = socket.socket(fileno=fd)
            try:
                if listening.family in (socket.AF_INET, socket.AF_INET6):
                    port_isolation.restrict(listening, self._cluster)
                    self.ports.add(listening.getsockname()[1])
            finally:
                listening.detach()
        try:
            return libc.call("listen", fd, backlog)
        except OSError as error:
            return error.errno or errno.EACCES


def trap_listen() -> int:
    """Trap listen() in the calling thread and all that it starts from now on, and return the trap's descriptor.

    Raises:
        PortIsolationError: The kernel refuses; see `seccomp.trap_listen`.
    """
    try:
        return seccomp.trap_listen()
    except seccomp.SeccompError as error:
        raise PortIsolationError(f"ports cannot be closed before they listen: {error}") from error


def isolate_this_process(cluster: Collection[Address], on_refused: Callable[[str], None]) -> ListenGuard:
    """Start a guard thread that restricts the sockets on which the calling thread and all later threads listen.

    This is only for processes whose threads release the global interpreter lock (GIL) before they call listen():
    otherwise the guard thread could not run during the call.

    `on_refused` is called in the guard thread.
    """
    trapped = threading.Event()
    guards: list[ListenGuard] = []

    def run() -> None:
        trapped.wait()
        with contextlib.suppress(OSError):  # the process is exiting
            while guards:
                guards[0].handle()

    # Start the thread before the trap is set, as the guard's own thread must not be trapped.
    threading.Thread(target=run, name="port guard", daemon=True).start()
    try:
        guards.append(ListenGuard(trap_listen(), cluster, on_refused))
    finally:
        trapped.set()
    return guards[0]


def check_support(cluster: Collection[Address]) -> None:
    """Check in a child process whether the ports of a cluster's server can be restricted on this machine.

    Raises:
        PortIsolationError: They cannot be restricted.
        OSError: The child process cannot be forked.
    """
    result = ask_in_fork(lambda: _listen_isolated(cluster).encode()).decode()
    if result != "isolated":
        raise PortIsolationError(result or "the process that checked it died")


def _listen_isolated(cluster: Collection[Address]) -> str:
    """Listen on a restricted port; return `isolated`, or the reason why the port cannot be restricted."""
    reasons: list[str] = []
    try:
        isolate_this_process(cluster, reasons.append)
        with socket.socket() as listener:
            listener.listen()
    except (PortIsolationError, OSError) as error:
        return reasons[0] if reasons else str(error)
    return "isolated"


@contextlib.contextmanager
def _duplicate(listener: int, notification: Notification) -> Iterator[int]:
    """Duplicate the descriptor that a trapped thread calls listen() on, and close the duplicate in the end.

    It is -1 if the caller has no such descriptor.

    Raises:
        OSError: This process may not duplicate it, or the caller has exited.
    """
    pidfd = os.pidfd_open(_process_of(notification.tid))
    try:
        if not seccomp.is_waiting(listener, notification):  # the pid may have been reused by another process
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        fd = _pidfd_getfd(pidfd, notification.fd)
    finally:
        os.close(pidfd)
    try:
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def _process_of(tid: int) -> int:
    """Return the pid of the process that a thread belongs to, since a pidfd refers to a process."""
    if (pid := procfs.read_status(tid).get("Tgid")) is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return int(pid)


def _pidfd_getfd(pidfd: int, fd: int) -> int:
    """Duplicate a descriptor of another process by pidfd_getfd(2), which Python's os module lacks.

    Return -1 if the process has no such descriptor.
    """
    try:
        return libc.call("syscall", _SYS_PIDFD_GETFD, pidfd, fd, 0)
    except OSError as error:
        if error.errno == errno.EBADF:
            return -1
        raise
