"""Forks a process that detaches in the way that the first argument names, and prints in JSON what that process saw."""

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tfcluster.os import daemonize


def content(name: str) -> bytes:
    return Path("/proc/self", name).read_bytes()


def descriptors(keep: int) -> Any:
    """A listener, a lock that would be inherited, and a connection, of which only the connection is kept."""
    listener, lock = socket.create_server(("127.0.0.1", 0)), os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(lock, True)
    connection, _ = socket.socketpair()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outputs = os.readlink("/proc/self/fd/1"), os.readlink("/proc/self/fd/2")
    daemonize.detach("t", keep=[connection.fileno(), keep])
    open_fds = [fd for fd in range(256) if os.path.exists(f"/proc/self/fd/{fd}")]
    return {
        "descriptors": open_fds == sorted([0, 1, 2, connection.fileno(), keep]) and listener.fileno() not in open_fds,
        "input": [os.readlink("/proc/self/fd/0"), os.read(0, 10).decode()],
        "output": outputs == (os.readlink("/proc/self/fd/1"), os.readlink("/proc/self/fd/2")),
        "leads a session": os.getsid(0) == os.getpid(),
        "interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_DFL,
    }


def log(keep: int, path: str) -> Any:
    """Prints lines by itself and by C, whose last one comes in two parts."""
    file = Path(path)
    daemonize.detach("t", log=file, keep=[keep])
    os.write(1, b"one\n")
    os.write(2, b"two\n")
    libc = ctypes.CDLL(None)
    error = ctypes.c_void_p.in_dll(libc, "stderr")
    libc.printf(b"three\n")
    libc.fputs(b"fo", error)
    before = file.read_text()
    libc.fputs(b"ur\n", error)
    return [oct(file.stat().st_mode & 0o777), before, file.read_text()]


def title(keep: int, text: str) -> Any:
    daemonize.detach(text, keep=[keep])
    return [Path(f"/proc/{os.getpid()}/cmdline").read_text(), content("comm").decode()]


def long_title(keep: int) -> Any:
    room, environment = len(content("cmdline")), content("environ")
    daemonize.detach("x" * 100_000, keep=[keep])
    return [content("cmdline") == b"x" * (room - 1) + b"\0", content("environ") == environment]


SCENES = (descriptors, log, title, long_title)
(scene,) = (scene for scene in SCENES if scene.__name__ == sys.argv[1])
before = content("cmdline")
reader, report_fd = os.pipe()
if os.fork() == 0:
    try:
        seen = scene(report_fd, *sys.argv[2:])
        with open(report_fd, "w") as report:
            json.dump(seen, report)
    finally:
        os._exit(1)
os.close(report_fd)
with open(reader) as answer:
    print(answer.read())
assert content("cmdline") == before, "the parent keeps its own"
