"""Sockets on which a trapped process listens are bound to loopback first, those of its threads and children too.

A trap cannot be removed, so each test is a program of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

_PROGRAM = """
import errno, json, os, socket, struct, subprocess, sys, threading
from ipaddress import ip_address
from tfcluster.os import seccomp
from tfcluster.processes.servers import port_isolation

LOOPBACK = frozenset([ip_address("127.0.0.1")])
reasons = []

def device_of(listener):
    return listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\\0").decode()

def bound(family, port=0, only_ipv6=False):
    listener = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_ipv6))
    listener.bind(("", port))
    return listener

def isolate():
    return port_isolation.isolate_this_process(LOOPBACK, lambda error: reasons.append(error.message))

def descriptors():
    return sorted(os.listdir("/proc/self/fd"))

def report(value):
    print(json.dumps(value))

"""


def run(body: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", _PROGRAM + body, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("uid", ["root", "nobody"])
def test_each_listening_socket_is_bound_to_loopback_and_others_stay_as_they_are(uid: str) -> None:
    """Two sockets on one port, one of which listens twice."""
    body = f"""
if {uid!r} == "nobody" and os.getuid() == 0:
    "".encode("idna")  # Python's own files may not be this user's to read
    os.setgroups([])
    os.setresuid(65534, 65534, 65534)  # an ordinary user, without capabilities
early = bound(socket.AF_INET)
early.listen()
guard = isolate()
local = socket.socket(socket.AF_UNIX)
local.bind("\\0test-" + str(os.getpid()))
local.listen()
four = bound(socket.AF_INET)
port = four.getsockname()[1]
six = bound(socket.AF_INET6, port, only_ipv6=True)
before = device_of(four)
for listener in (four, six, four):
    listener.listen()
for listener, address in ((four, "127.0.0.1"), (six, "::1")):
    with socket.create_connection((address, port)) as client, listener.accept()[0] as accepted:
        accepted.sendall(b"x")
        assert client.recv(1) == b"x"
with socket.create_connection(("127.0.0.1", early.getsockname()[1])) as client:
    report([before, *map(device_of, (four, six, early, client)), guard.ports == {{port}}, reasons])
"""
    assert run(body) == ["", "lo", "lo", "", "", True, []]


def test_listen_fails_with_the_kernels_error_as_without_a_guard() -> None:
    body = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
guard = isolate()
def error(fd):
    assert libc.listen(fd, 1) == -1
    return errno.errorcode[ctypes.get_errno()]
first, second = socket.socket(), socket.socket()
for each in (first, second):
    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
first.bind(("127.0.0.1", 0))
second.bind(first.getsockname())
first.listen()
report([error(0), error(999), error(second.fileno()), reasons])
"""
    assert run(body) == ["ENOTSOCK", "EBADF", "EADDRINUSE", []]


def test_threads_and_children_that_are_forked_or_executed_are_trapped_too() -> None:
    body = """
guard = isolate()
listening = []

def listen():
    listening.append(bound(socket.AF_INET))
    listening[-1].listen()

thread = threading.Thread(target=listen)
thread.start()
thread.join()
reading, writing = os.pipe()
if os.fork() == 0:
    listen()
    os.write(writing, device_of(listening[-1]).encode())
    os._exit(0)
os.wait()
program = (
    "import socket, threading\\n"
    "listener = socket.socket()\\n"
    "thread = threading.Thread(target=listener.listen)\\n"  # the tid is not the pid
    "thread.start(); thread.join()\\n"
    "print(listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(bytes(1)).decode())\\n"
)
executed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
report([device_of(listening[0]), os.read(reading, 9).decode(), executed.stdout.strip(), len(guard.ports), reasons])
"""
    assert run(body) == ["lo", "lo", "lo", 3, []]


def test_a_socket_that_cannot_be_restricted_may_not_listen() -> None:
    """The kernel's refusal is played."""
    body = """
def refuse(*arguments):
    raise PermissionError(1, "Operation not permitted")

guard = isolate()
listener = bound(socket.AF_INET)
before = descriptors()
real, socket.socket.setsockopt = socket.socket.setsockopt, refuse
try:
    listener.listen()
except OSError as error:
    failed = errno.errorcode[error.errno]
socket.socket.setsockopt = real
are_closed = descriptors() == before
reason = reasons[0].replace(str(listener.getsockname()[1]), "PORT")
listener.listen()
report([failed, reason, are_closed, len(reasons), device_of(listener)])
"""
    reason = "the kernel refused to bind port PORT to loopback: Operation not permitted"
    assert run(body) == ["EACCES", reason, True, 1, "lo"]


def test_a_signal_that_interrupts_the_guard_does_not_end_it() -> None:
    """A listen() that no guard answers would wait for ever."""
    body = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *arguments: None)
guard = isolate()
thread = next(each for each in threading.enumerate() if each.name == "port guard")

def waits():
    with open(f"/proc/self/task/{thread.native_id}/syscall") as call:
        return call.read().split()[0] == IOCTL

IOCTL = {"x86_64": "16", "aarch64": "29"}[os.uname().machine]
while not waits():
    time.sleep(0.01)
signal.pthread_kill(thread.ident, signal.SIGUSR1)
thread.join(0.2)
signal.alarm(10 if thread.is_alive() else 1)
socket.create_server(("127.0.0.1", 0))
report(len(guard.ports))
"""
    assert run(body) == 1


def test_without_its_guard_a_process_may_not_listen() -> None:
    body = """
os.close(seccomp.trap_listen())
try:
    socket.create_server(("127.0.0.1", 0))
except OSError as error:
    report(errno.errorcode[error.errno])
"""
    assert run(body) == "ENOSYS"


def test_programs_that_call_the_kernel_by_other_numbers_are_killed() -> None:
    """As x32 and 32-bit programs do, whose listen() the trap would not see."""
    body = """
import ctypes, platform, signal
isolate()
if platform.machine() != "x86_64":
    report(signal.SIGSYS)
elif (pid := os.fork()) == 0:
    ctypes.CDLL(None).syscall(0x40000000 | 39)  # getpid() of x32
    os._exit(0)
else:
    report(os.WTERMSIG(os.waitpid(pid, 0)[1]))
"""
    assert run(body) == 31


_UNRESTRICTED = """
listener = bound(socket.AF_INET)
listener.listen()
report([reason, device_of(listener)])
"""
# Has the kernel fail seccomp() with EPERM, as the profile of a container may.
_FORBID = """
import ctypes
code = b"".join(struct.pack("=HBBI", *each) for each in (
    (0x20, 0, 0, 0), (0x15, 0, 1, seccomp._architecture().seccomp), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000),
))
buffer = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HP", 4, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, program) == 0, ctypes.get_errno()
"""
_TRY = """
def supported():
    before = descriptors()
    try:
        port_isolation.check_support(LOOPBACK)
        reason = "isolated"
    except port_isolation.PortIsolationError as error:
        reason = error.message
    assert descriptors() == before
    return reason
"""


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("", "isolated"),
        (_FORBID, "the kernel refused a seccomp filter (Operation not permitted)"),
        (
            "isolate()",
            "another program (such as a container manager) traps system calls of this process already",
        ),
    ],
)
def test_support_is_checked_in_a_child_process(before: str, reason: str) -> None:
    found, device = run(f"{_TRY}{before}\nreason = supported()\n{_UNRESTRICTED}")
    assert found == (reason if reason == "isolated" else f"ports cannot be closed before they listen: {reason}")
    assert device == ("lo" if before == "isolate()" else "")


@pytest.mark.parametrize("refusal", ["pidfd_getfd", "no_pidfd_getfd", "no_pidfd_open"])
def test_a_process_restricts_its_own_sockets_without_any_privilege(refusal: str) -> None:
    """In a container of Docker and on older kernels; descriptors that do not exist fail as they do elsewhere."""
    body = """
import ctypes
from tests import forbidden
forbidden.REFUSALS[sys.argv[1]]()
isolate()
listener = bound(socket.AF_INET)
listener.listen()
failed = [ctypes.CDLL(None, use_errno=True).listen(fd, 1) for fd in (999, -1)]
report([device_of(listener), failed, reasons])
"""
    assert run(body, refusal) == ["lo", [-1, -1], []]


_BY_YAMA = "`sysctl -w kernel.yama.ptrace_scope=1`, typed by the machine's root user, allows it."


@pytest.mark.parametrize(
    ("refusal", "scope", "uid", "reason", "remedy"),
    [
        ("", "", 0, "", ""),
        (
            "pidfd_getfd",
            "",
            0,
            "pidfd_getfd() is not permitted",
            "In a container, add `--cap-add SYS_PTRACE` to `docker run`, or",
        ),
        (
            "pidfd_getfd",
            "2",
            0,
            "pidfd_getfd() is not permitted",
            "In a container, add `--cap-add SYS_PTRACE` to `docker run`, or",
        ),
        ("pidfd_getfd", "2", 65534, "kernel.yama.ptrace_scope is 2", _BY_YAMA),
        ("pidfd_getfd", "3", 0, "kernel.yama.ptrace_scope is 3 until the next boot of the machine", "Until then,"),
        (
            "no_pidfd_getfd",
            "",
            0,
            "there is no pidfd_getfd(): it came with Linux 5.6, and the seccomp filter of a container can forbid it",
            "In a container, add `--security-opt",
        ),
    ],
)
def test_whether_another_process_can_restrict_a_programs_sockets_is_tried(
    tmp_path: Path, refusal: str, scope: str, uid: int, reason: str, remedy: str
) -> None:
    """The kernel of the tests has no Yama: its switch is played, and the filter refuses what it would refuse."""
    body = """
from pathlib import Path
from tests import forbidden
refusal, scope, uid = sys.argv[1:]
port_isolation._YAMA_SCOPE = Path(scope)
os.geteuid = lambda: int(uid)
if refusal:
    forbidden.REFUSALS[refusal]()
before = descriptors()
port_isolation.check_support(LOOPBACK)
try:
    port_isolation.check_program_support(LOOPBACK)
    found = ["", ""]
except port_isolation.PortIsolationError as error:
    found = [error.message, error.hint]
report([*found, descriptors() == before])
"""
    (tmp_path / "scope").write_text(f"{scope}\n")
    message, hint, has_same_descriptors = run(body, refusal, str(tmp_path / ("scope" if scope else "none")), str(uid))
    assert message == (reason and f"the port of a program cannot be restricted: {reason}")
    assert hint.startswith(remedy)
    assert ("`network: open`" in hint) == bool(reason)
    assert has_same_descriptors


def test_a_descriptor_that_is_given_to_another_socket_meanwhile_does_not_listen() -> None:
    """What another thread of a program could do between the restriction of its socket and listen()."""
    body = """
other = bound(socket.AF_INET)
listener = bound(socket.AF_INET)
kept = listener.dup()
real = port_isolation.restrict

def restrict_and_swap(*arguments):
    real(*arguments)
    os.dup2(other.fileno(), listener.fileno())

port_isolation.restrict = restrict_and_swap
isolate()
listener.listen()

def listens(each):
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

report([listens(other), listens(kept), device_of(kept)])
"""
    assert run(body) == [False, True, "lo"]


def test_a_program_cannot_undo_the_restriction_nor_listen_through_io_uring() -> None:
    body = """
import ctypes
isolate()
listener = bound(socket.AF_INET)
listener.listen()
failed = []
for option, value in ((socket.SO_BINDTODEVICE, b""), (socket.SO_BINDTODEVICE, b"eth0"), (62, 0)):
    try:
        listener.setsockopt(socket.SOL_SOCKET, option, value)
    except OSError as error:
        failed.append(errno.errorcode[error.errno])
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # other options are the program's
libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)  # struct io_uring_params
ring = errno.errorcode.get(ctypes.get_errno()) if libc.syscall(425, 4, parameters) < 0 else "a ring"
report([failed, device_of(listener), ring])
"""
    assert run(body) == [["EPERM"] * 3, "lo", "ENOSYS"]


def test_the_callers_backlog_applies() -> None:
    body = """
isolate()
listener = bound(socket.AF_INET)
listener.listen(3)
clients = []
try:
    for _ in range(10):
        clients.append(socket.socket())
        clients[-1].settimeout(0.5)
        clients[-1].connect(("127.0.0.1", listener.getsockname()[1]))
except TimeoutError:
    report(len(clients) - 1)
"""
    assert run(body) == 4


def test_a_process_outside_the_trap_can_listen_for_a_program_and_udp_is_not_trapped() -> None:
    """What docs/network.md says of a script that wants to get around the trap: here its own process from before it."""
    body = """
inside, outside = socket.socketpair(socket.AF_UNIX)
if os.fork() == 0:
    _, (fd,), *_ = socket.recv_fds(outside, 1, 1)
    socket.socket(fileno=fd).listen()
    outside.sendall(b"x")
    os._exit(0)
isolate()
listener = bound(socket.AF_INET)
socket.send_fds(inside, [b"x"], [listener.fileno()])
inside.recv(1)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", 0))
report([bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)), device_of(listener), device_of(datagrams)])
"""
    assert run(body) == [True, "", ""]
