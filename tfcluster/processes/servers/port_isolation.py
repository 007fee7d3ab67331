"""Port isolation: accept connections to the ports of a process only from this machine, or from its cluster's hosts.

A TensorFlow server listens on all interfaces, whatever address it is given, and executes any graph for anyone who
connects. Requests that arrive between listen() and the moment at which a server starts to serve are queued and executed
later, even if the connection has been cut meanwhile. Each socket is therefore restricted before it listens: listen() is
trapped (see `seccomp`), a guard in another thread or process restricts the caller's socket, and only then does the
guard call listen() on it, for the caller.

A port of a cluster on several hosts gets a socket filter (see `bpf`) that passes packets only from the addresses of the
hosts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os import bpf, libc, procfs, seccomp
from tfcluster.os.daemonize import ask_in_fork
from tfcluster.os.network import Address, parse_address
from tfcluster.os.seccomp import Notification
from tfcluster.paths import LOCAL_HOST

# The hint for hosts on which ports cannot be restricted.
_OTHER_NETWORKS = (
    "`network: private` in the spec requires no privileges, keeps everyone else out, including other accounts, and "
    "encrypts traffic between hosts; in return, only programs that `tfcluster run`, `launch` and `exec` start can "
    "reach the servers, and they can reach nothing else. `network: open` has no requirements, but every machine that "
    "can connect can run code as you: use it only if a firewall, or the network itself, keeps out non-members."
)
_LOOPBACK = b"lo"
_YAMA_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


class PortIsolationError(ClusterError):
    """A port cannot be restricted to this machine or the cluster; the hint names what allows that, and alternatives."""

    def __init__(self, message: str, *, hint: str = _OTHER_NETWORKS, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message, hint=hint, exit_code=exit_code)


OnRefused = Callable[[PortIsolationError], None]


def restrict(listener: socket.socket, cluster: Collection[Address]) -> None:
    """Restrict a TCP socket to connections from this machine and the rest of its cluster. This is idempotent.

    listen() has not been called on the socket yet. `cluster` includes the addresses of this host. A cluster on this
    machine alone is restricted to connections over loopback. Raises PortIsolationError: the kernel refuses. For
    loopback it must be Linux 5.7 or newer, unless this process runs as root.
    """
    if all(address.is_loopback for address in cluster):
        _bind_to_loopback(listener)
    else:
        restrict_to_peers(listener, cluster)


def restrict_to_peers(listener: socket.socket, cluster: Collection[Address]) -> None:
    """Restrict a socket to connections from a cluster's addresses and from this machine.

    `cluster` includes the addresses of this host. Raises PortIsolationError: the kernel refuses.
    """
    if bpf.has_locked_filter(listener):
        return
    try:
        bpf.attach_filter(listener, cluster)
    except PermissionError as error:
        raise PortIsolationError(
            f"the kernel lets only a process with CAP_NET_ADMIN choose who connects to {_named(listener)}",
            hint=_root_hint("NET_ADMIN"),
        ) from error
    except OSError as error:
        raise PortIsolationError(f"the kernel refused a filter on {_named(listener)}: {error.strerror}") from error


def _bind_to_loopback(listener: socket.socket) -> None:
    # An unprivileged process can bind a socket to a device only once, so skip this if listen() is called again.
    if listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == _LOOPBACK:
        return
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK)
    except OSError as error:
        raise PortIsolationError(
            f"the kernel refused to bind {_named(listener)} to loopback: {error.strerror}", hint=_root_hint("NET_RAW")
        ) from error


def _root_hint(capability: str) -> str:
    """Return the hint for a process without a capability that root has, but not in each container."""
    remedy = f"In a container, add `--cap-add {capability}`."
    return f"{remedy if os.geteuid() == 0 else f'`network: closed` works as root. {remedy}'} {_OTHER_NETWORKS}"


def _named(listener: socket.socket) -> str:
    """Return a description of a socket's port for messages.

    A socket that is not bound to a port yet is the one of a check, or gets its port from listen().
    """
    port = listener.getsockname()[1]
    return f"port {port}" if port else "the servers' ports"


def addresses_of(hosts: Iterable[Host]) -> frozenset[Address]:
    """Return the IPv4 and IPv6 addresses that hosts' addresses resolve to on this machine.

    Raises OSError: the address of a host cannot be resolved. The message names the host.
    """
    addresses: set[Address] = set()
    for host in hosts:
        if host.address == LOCAL_HOST:  # a lookup would add milliseconds to the start of every server
            addresses.add(IPv4Address("127.0.0.1"))
            continue
        try:
            entries = socket.getaddrinfo(host.address, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid DNS name
            why = error.strerror if isinstance(error, OSError) else error
            raise OSError(
                f"host {host.name}: its address {host.address!r} cannot be resolved on this machine ({why})"
            ) from error
        addresses.update(parse_address(str(name[0])) for *_, name in entries)
    return frozenset(addresses)


class ListenGuard:
    """Restricts every TCP socket on which trapped threads call listen(), before the call takes effect.

    Args:
        listener: The descriptor that `trap_listen` returned.
        cluster: The IP addresses of all the cluster's hosts, including this one.
        on_refused: Called with the reason each time a socket cannot be restricted. Its listen() then fails with EACCES.
    """

    def __init__(self, listener: int, cluster: Collection[Address], on_refused: OnRefused) -> None:
        self.ports: set[int] = set()
        self._listener = listener
        self._cluster = cluster
        self._on_refused = on_refused

    def fileno(self) -> int:
        """Return the descriptor of the trap, which is readable when a call is waiting."""
        return self._listener

    def handle(self) -> None:
        """Wait for a call of listen(), restrict its socket and listen on it; if that cannot be done, the call fails.

        Raises OSError: all trapped threads have exited.
        """
        notification = seccomp.receive(self._listener)
        if notification is None:
            return
        try:
            with _duplicate(self._listener, notification) as fd:
                error = self._listen(fd, notification.backlog)
        except (PortIsolationError, OSError) as refused:
            self._on_refused(_explained(refused))
            seccomp.answer(self._listener, notification, errno.EACCES)
        else:
            seccomp.answer(self._listener, notification, error)

    def _listen(self, fd: int, backlog: int) -> int:
        """Restrict a socket that a network can reach, and listen on it; return the errno of listen(), or 0."""
        if fd >= 0 and stat.S_ISSOCK(os.fstat(fd).st_mode):
            listening = socket.socket(fileno=fd)
            try:
                if listening.family in (socket.AF_INET, socket.AF_INET6):
                    restrict(listening, self._cluster)
                    self.ports.add(listening.getsockname()[1])
            finally:
                listening.detach()
        try:
            return libc.call("listen", fd, backlog)
        except OSError as error:
            return error.errno or errno.EACCES


def trap_listen() -> int:
    """Trap listen() in the calling thread and all that it starts from now on, and return the trap's descriptor.

    Raises PortIsolationError: the kernel refuses; see `seccomp.trap_listen`.
    """
    try:
        return seccomp.trap_listen()
    except seccomp.SeccompError as error:
        raise PortIsolationError(f"ports cannot be closed before they listen: {error}") from error


def isolate_this_process(cluster: Collection[Address], on_refused: OnRefused) -> ListenGuard:
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

    Raises PortIsolationError: they cannot be restricted. Raises OSError: the child process cannot be forked.
    """
    _check_in_fork(_listen_as_server, cluster)


def check_program_support(cluster: Collection[Address]) -> None:
    """Check the same for the ports of programs, which another process restricts; it raises the same errors."""
    _check_in_fork(_listen_as_program, cluster)


def _check_in_fork(listen: Callable[[Collection[Address], OnRefused], None], cluster: Collection[Address]) -> None:
    def answer() -> bytes:
        refusals: list[PortIsolationError] = []
        try:
            listen(cluster, refusals.append)
        except (PortIsolationError, OSError) as error:
            refusals.append(_explained(error))
        return json.dumps([refusal.to_json() for refusal in refusals]).encode()

    died = PortIsolationError("the process that checked it died")
    for refusal in json.loads(ask_in_fork(answer) or json.dumps([died.to_json()])):
        raise PortIsolationError.from_json(refusal)


def _explained(error: PortIsolationError | OSError) -> PortIsolationError:
    return error if isinstance(error, PortIsolationError) else PortIsolationError(str(error))


def _listen_as_server(cluster: Collection[Address], on_refused: OnRefused) -> None:
    """Listen on a port that a thread of this process restricts."""
    isolate_this_process(cluster, on_refused)
    with socket.socket() as listener:
        listener.listen()


def _listen_as_program(cluster: Collection[Address], on_refused: OnRefused) -> None:
    """Have a child process listen on a port that this process restricts."""
    own_end, child_end = socket.socketpair()
    if os.fork() == 0:
        try:
            socket.send_fds(child_end, [b"trap"], [trap_listen()])
            socket.socket().listen()
        finally:
            os._exit(0)
    child_end.close()
    traps = socket.recv_fds(own_end, 4, 1)[1]
    if not traps:
        raise PortIsolationError("a process could not trap listen() for another one")
    ListenGuard(traps[0], cluster, on_refused).handle()


@contextlib.contextmanager
def _duplicate(listener: int, notification: Notification) -> Iterator[int]:
    """Duplicate the descriptor that a trapped thread calls listen() on, and close the duplicate in the end.

    It is -1 if the caller has no such descriptor. Raises OSError: this process may not duplicate it, or the caller has
    exited.
    """
    process = _process_of(notification.tid)
    try:
        if process == os.getpid():  # its threads share their descriptors, so this requires no privilege
            fd = libc.call("fcntl", notification.fd, fcntl.F_DUPFD_CLOEXEC, 0)
        else:
            fd = _duplicate_of(process, listener, notification)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        fd = -1
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


def _duplicate_of(process: int, listener: int, notification: Notification) -> int:
    pidfd = libc.pidfd_open(process)
    try:
        if not seccomp.is_waiting(listener, notification):  # the pid may have been reused by another process
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return libc.pidfd_getfd(pidfd, notification.fd)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise _explain_refusal(error.errno) from error
        raise
    finally:
        os.close(pidfd)


def _explain_refusal(number: int) -> PortIsolationError:
    """Return the error that the kernel does not give this process the socket of a program, by the errno of that."""
    scope = _YAMA_SCOPE.read_text().strip() if _YAMA_SCOPE.exists() else ""
    remedy = "In a container, add `--cap-add SYS_PTRACE` to `docker run`, or"
    if number == errno.ENOSYS:
        why = "there is no pidfd_getfd(): it came with Linux 5.6, and the seccomp filter of a container can forbid it"
        remedy = "In a container, add `--security-opt seccomp=unconfined` to `docker run`, or"
    elif scope == "3":
        why, remedy = "kernel.yama.ptrace_scope is 3 until the next boot of the machine", "Until then,"
    elif scope == "2" and os.geteuid() != 0:
        why = "kernel.yama.ptrace_scope is 2"
        remedy = "`sysctl -w kernel.yama.ptrace_scope=1`, typed by the machine's root user, allows it. Or"
    else:
        why = "pidfd_getfd() is not permitted"
    return PortIsolationError(
        f"the port of a program cannot be restricted: {why}",
        hint=f"{remedy} write `network: private` or `network: open` in the spec (for `launch --workers`: `--network`). "
        "With `open`, every machine that can connect can run code as you.",
    )
