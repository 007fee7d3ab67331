"""What another account tries against a cluster: connect to it, join its network, read its processes and files.

Run as a program, with nothing but Python's own library: `python intrude.py < TARGETS`. The targets are a JSON object
with `addresses`, `ports`, `pids`, `sockets` and `paths`. It prints a JSON object: how much was tried, what succeeded.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PTRACE_ATTACH, _PTRACE_DETACH = 16, 17
_SYS_PIDFD_GETFD = 438
_LIBC = ctypes.CDLL(None, use_errno=True)


Attempt = tuple[str, Callable[[], object]]


def attempts(targets: dict[str, Any]) -> Iterator[Attempt]:
    """Yield everything that is tried, with its name; what raises no OSError has succeeded."""
    for address in targets["addresses"]:
        for port in targets["ports"]:
            yield f"connect to {address} {port}", partial(_connect_to_port, address, port)
    for path in targets["sockets"]:
        yield f"connect to {path}", partial(_connect, path)
    for pid in targets["pids"]:
        yield from _attempts_on_process(pid)
    for path in targets["paths"]:
        yield f"read {path}", partial(os.listdir if os.path.isdir(path) else _read, path)
        yield f"write to {path}", partial(_write, path)


def _attempts_on_process(pid: int) -> Iterator[Attempt]:
    for kind, flag in (("user", _CLONE_NEWUSER), ("net", _CLONE_NEWNET)):
        yield f"join {kind} of {pid}", partial(_join, pid, kind, flag)
        yield f"join {kind} of {pid} by its pidfd", partial(_join_by_pidfd, pid, flag)
    yield f"nsenter {pid}", partial(_nsenter, pid)
    yield f"attach to {pid}", partial(_attach, pid)
    yield f"take a descriptor of {pid}", partial(_get_fd, pid)
    yield f"signal {pid}", partial(os.kill, pid, signal.SIGCONT)
    for name in ("environ", "mem", "maps", "auxv", "stack"):
        yield f"read {name} of {pid}", partial(_read, f"/proc/{pid}/{name}")
    for name in ("fd", "map_files", "root", "cwd"):
        yield f"list {name} of {pid}", partial(os.listdir, f"/proc/{pid}/{name}/")


def _connect_to_port(address: str, port: int) -> None:
    socket.create_connection((address, port), 5).close()


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _write(path: str) -> None:
    name = f"{path}/intruder" if os.path.isdir(path) else path
    os.close(os.open(name, os.O_WRONLY | (os.O_CREAT if name != path else 0), 0o600))


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)


def _join(pid: int, kind: str, flag: int) -> None:
    fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    _in_child(lambda: _setns(fd, flag))


def _join_by_pidfd(pid: int, flag: int) -> None:
    pidfd = os.pidfd_open(pid)
    _in_child(lambda: _setns(pidfd, flag))


def _setns(fd: int, flags: int) -> None:
    _check(_LIBC.setns(fd, flags))


def _in_child(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def _nsenter(pid: int) -> None:
    command = ["nsenter", "-t", str(pid), "-U", "-n", "--preserve-credentials", "true"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        raise PermissionError


def _attach(pid: int) -> None:
    _check(_LIBC.ptrace(_PTRACE_ATTACH, pid, None, None))
    os.waitpid(pid, 0)
    _LIBC.ptrace(_PTRACE_DETACH, pid, None, None)


def _get_fd(pid: int) -> None:
    _check(_LIBC.syscall(_SYS_PIDFD_GETFD, os.pidfd_open(pid), 1, 0))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> None:
    """Try everything, and print the result."""
    tried, succeeded = 0, []
    for name, attempt in attempts(json.load(sys.stdin)):
        tried += 1
        try:
            attempt()
        except OSError:
            continue
        succeeded.append(name)
    print(json.dumps({"tried": tried, "succeeded": succeeded}))


if __name__ == "__main__":
    main()
