"""Listens as a trapped process, in the way that the first argument names, and prints in JSON what came of it."""

import ctypes
import errno
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from tests import forbidden
from tfcluster.os import seccomp
from tfcluster.processes.servers import port_isolation

LOOPBACK = frozenset([ip_address("127.0.0.1")])
EXECUTED = """import socket, threading
listener = socket.socket()
thread = threading.Thread(target=listener.listen)  # the tid is not the pid
thread.start()
thread.join()
print(listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(bytes(1)).decode())
"""
reasons: list[str] = []
libc = ctypes.CDLL(None, use_errno=True)


def device_of(listener: socket.socket) -> str:
    return listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0").decode()


def listens(listener: socket.socket) -> bool:
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def bound(family: int = socket.AF_INET, port: int = 0) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(("", port))
    return listener


def listening() -> socket.socket:
    listener = bound()
    listener.listen()
    return listener


def isolate() -> Any:
    return port_isolation.isolate_this_process(LOOPBACK, lambda error: reasons.append(error.message))


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def error_of(function: Any, *arguments: Any) -> str:
    """Return the name of the error with which a function fails; empty if it succeeds."""
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def answers(listener: socket.socket, address: str) -> bool:
    with socket.create_connection((address, listener.getsockname()[1])) as client, listener.accept()[0] as accepted:
        accepted.sendall(b"x")
        return client.recv(1) == b"x"


def become_nobody() -> None:
    """Become an ordinary user, without capabilities."""
    if os.getuid() == 0:
        "".encode("idna")  # Python's own files may not be this user's to read
        os.setgroups([])
        os.setresuid(65534, 65534, 65534)


def two_families(user: str) -> Any:
    """Two sockets on one port, one of which listens twice, beside sockets that the guard leaves alone."""
    if user == "nobody":
        become_nobody()
    early = listening()
    guard = isolate()
    local = socket.socket(socket.AF_UNIX)
    local.bind(f"\0test-{os.getpid()}")
    local.listen()
    four = bound()
    port = four.getsockname()[1]
    six = bound(socket.AF_INET6, port)
    before = device_of(four)
    for listener in (four, six, four):
        listener.listen()
    answered = answers(four, "127.0.0.1"), answers(six, "::1")
    with socket.create_connection(("127.0.0.1", early.getsockname()[1])) as client:
        return [before, *map(device_of, (four, six, early, client)), *answered, guard.ports == {port}]


def errors_of_the_kernel() -> Any:
    isolate()

    def listen(fd: int) -> str:
        assert libc.listen(fd, 1) == -1
        return errno.errorcode[ctypes.get_errno()]

    first, second = socket.socket(), socket.socket()
    for each in (first, second):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    first.bind(("127.0.0.1", 0))
    second.bind(first.getsockname())
    first.listen()
    return [listen(0), listen(999), listen(second.fileno())]


def thread_fork_and_exec() -> Any:
    guard = isolate()
    devices: list[str] = []
    thread = threading.Thread(target=lambda: devices.append(device_of(listening())))
    thread.start()
    thread.join()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, device_of(listening()).encode())
        os._exit(0)
    os.wait()
    executed = subprocess.run([sys.executable, "-c", EXECUTED], capture_output=True, text=True, check=True)
    return [*devices, os.read(reading, 9).decode(), executed.stdout.strip(), len(guard.ports)]


def refused_by_the_kernel() -> Any:
    """The kernel's refusal to restrict a socket is played."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    isolate()
    listener = bound()
    before = descriptors()
    real, socket.socket.setsockopt = socket.socket.setsockopt, refuse  # type: ignore[method-assign]
    failed = error_of(listener.listen)
    socket.socket.setsockopt = real  # type: ignore[method-assign]
    reason = reasons.pop().replace(str(listener.getsockname()[1]), "PORT")
    are_closed = descriptors() == before
    listener.listen()
    return [failed, reason, are_closed, device_of(listener)]


def interrupted_guard() -> Any:
    """A signal interrupts the guard; a listen() that no guard answers would wait for ever."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    guard = isolate()
    thread = next(each for each in threading.enumerate() if each.name == "port guard")
    ioctl = {"x86_64": "16", "aarch64": "29"}[platform.machine()]
    while Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0] != ioctl:
        time.sleep(0.01)
    signal.pthread_kill(thread.ident or 0, signal.SIGUSR1)
    thread.join(0.2)
    signal.alarm(10 if thread.is_alive() else 1)
    listening()
    return len(guard.ports)


def without_guard() -> Any:
    os.close(seccomp.trap_listen())
    return error_of(listening)


def foreign_numbers() -> Any:
    """As x32 and 32-bit programs call the kernel, whose listen() the trap would not see."""
    isolate()
    if platform.machine() != "x86_64":
        return signal.SIGSYS
    if (pid := os.fork()) == 0:
        libc.syscall(0x40000000 | 39)  # getpid() of x32
        os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def forbid_seccomp() -> None:
    """Have the kernel fail seccomp() with EPERM, as the profile of a container may."""
    number = seccomp._architecture().seccomp
    instructions = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000))
    code = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    libc.prctl(38, 1, 0, 0, 0)
    assert libc.prctl(22, 2, struct.pack("HP", 4, ctypes.addressof(buffer))) == 0, ctypes.get_errno()


def support(before: str) -> Any:
    """Whether a process can be isolated, and whether the question has left it as it was."""
    {"forbidden": forbid_seccomp, "isolated": isolate}.get(before, int)()
    open_before = descriptors()
    reason = "isolated"
    try:
        port_isolation.check_support(LOOPBACK)
    except port_isolation.PortIsolationError as error:
        reason = error.message
    return [reason, descriptors() == open_before, device_of(listening())]


def refused(refusal: str) -> Any:
    """Without what one process needs to restrict the sockets of another; unknown descriptors fail as elsewhere."""
    forbidden.REFUSALS[refusal]()
    isolate()
    return [device_of(listening()), [libc.listen(fd, 1) for fd in (999, -1)]]


def support_of_programs(refusal: str, scope: str, uid: str) -> Any:
    """Yama's switch is played, and a filter refuses what it would refuse."""
    port_isolation._YAMA_SCOPE = Path(scope)
    os.geteuid = lambda: int(uid)
    if refusal:
        forbidden.REFUSALS[refusal]()
    before = descriptors()
    port_isolation.check_support(LOOPBACK)
    found = ["", ""]
    try:
        port_isolation.check_program_support(LOOPBACK)
    except port_isolation.PortIsolationError as error:
        found = [error.message, error.hint]
    return [*found, descriptors() == before]


def swapped_descriptor() -> Any:
    """What another thread of a program could do between the restriction of its socket and listen()."""
    other, listener = bound(), bound()
    kept = listener.dup()
    real = port_isolation.restrict

    def restrict_and_swap(*arguments: Any) -> None:
        real(*arguments)
        os.dup2(other.fileno(), listener.fileno())

    port_isolation.restrict = restrict_and_swap  # type: ignore[assignment]
    isolate()
    listener.listen()
    return [listens(other), listens(kept), device_of(kept)]


def cannot_be_undone() -> Any:
    """Options of the socket do not undo it, and io_uring, which no filter of system calls sees, cannot listen."""
    isolate()
    listener = listening()
    options = ((socket.SO_BINDTODEVICE, b""), (socket.SO_BINDTODEVICE, b"eth0"), (62, 0))
    failed = [error_of(listener.setsockopt, socket.SOL_SOCKET, *each) for each in options]
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # other options are the program's
    parameters = ctypes.create_string_buffer(120)  # struct io_uring_params
    ring = errno.errorcode.get(ctypes.get_errno()) if libc.syscall(425, 4, parameters) < 0 else "a ring"
    return [failed, device_of(listener), ring]


def backlog() -> Any:
    isolate()
    listener = bound()
    listener.listen(3)
    clients: list[socket.socket] = []
    try:
        for _ in range(10):
            clients.append(socket.socket())
            clients[-1].settimeout(0.5)
            clients[-1].connect(("127.0.0.1", listener.getsockname()[1]))
    except TimeoutError:
        return len(clients) - 1


def may_listen_outside() -> Any:
    """What docs/network.md says of a script that wants to get around the trap: its own process from before it."""
    inside, outside = socket.socketpair(socket.AF_UNIX)
    if os.fork() == 0:
        _, (fd,), *_ = socket.recv_fds(outside, 1, 1)
        socket.socket(fileno=fd).listen()
        outside.sendall(b"x")
        os._exit(0)
    isolate()
    listener = bound()
    socket.send_fds(inside, [b"x"], [listener.fileno()])
    inside.recv(1)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", 0))
    return [listens(listener), device_of(listener), device_of(datagrams)]


SCENES = (
    *(two_families, errors_of_the_kernel, thread_fork_and_exec, refused_by_the_kernel, interrupted_guard),
    *(
        without_guard,
        foreign_numbers,
        support,
        refused,
        support_of_programs,
        swapped_descriptor,
        cannot_be_undone,
        backlog,
        may_listen_outside,
    ),
)
(scene,) = (scene for scene in SCENES if scene.__name__ == sys.argv[1])
print(json.dumps([scene(*sys.argv[2:]), reasons]))
