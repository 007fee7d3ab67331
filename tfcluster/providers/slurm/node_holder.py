"""The program that holds a node of a job: it starts agents there, and ends what they have started when the job ends.

A job's step ends what it has started, so an agent cannot be started by the step of a command. This program is the step
that stays. It is the subreaper of all agents, tasks and runs on its node: so they stay its descendants, whatever their
parents do, and Slurm finds them however it tracks processes. It is two processes: if one of them is killed, the other
one ends what they have started.

The source of this file is in the batch script, so it imports nothing of tfcluster.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TERMINATE_SECONDS = 1.0  # between SIGTERM and SIGKILL; Slurm may kill this process two seconds after its SIGTERM
_REQUEST_SECONDS = 10.0
_REQUEST_MAX_BYTES = 1 << 24
_STREAMS = 3
#: What stays in a cluster's state folder when a job has ended.
KEPT = ("logs", "runs")


def socket_name() -> str:
    """Return the address of the holder's socket on this node, in the abstract namespace: it leaves no file."""
    return f"\0tfcluster-{os.getuid()}-{os.environ['SLURM_JOB_ID']}-{os.environ['SLURMD_NODENAME']}"


class NodeHolder:
    """Serves the requests of this user's processes on the node, one line of JSON a connection.

    `{"folder"}`: the state folder of a cluster on this node; what an earlier job has left in it is removed -> `{}`.
    `{"argv", "environment"}` with three descriptors, the standard streams: start an agent -> `{"pid"}`, and a second
    line `{"code"}` when it has exited.
    """

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._waiting: dict[int, socket.socket] = {}  # who has asked for a process, by its pid
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(socket_name())
        self._listener.listen(64)

    def serve(self) -> None:
        """Serve until SIGTERM arrives; then end all descendants of this process."""
        # Any request and any signal wakes the process up: a signal's number is written to this socket.
        woken, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        ended: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        while not ended:
            ready = {fd for fd, _ in poll.poll()}
            if woken.fileno() in ready:
                woken.recv(4096)
                self._reap()
            if self._listener.fileno() in ready:
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    self._accept()
        self._listener.close()
        _end_descendants()
        for folder in self._folders:
            clear(folder)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_REQUEST_SECONDS)
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        request, streams = _receive(connection) if uid == os.getuid() else ({}, [])
        try:
            if "folder" in request:
                if request["folder"] not in self._folders:
                    _end_earlier(request["folder"])
                    clear(request["folder"])
                    self._folders.add(request["folder"])
                _send(connection, {})
            elif "argv" in request:
                self._start(connection, request, streams)
        finally:
            for fd in streams:
                os.close(fd)

    def _start(self, connection: socket.socket, request: dict[str, Any], streams: list[int]) -> None:
        # The step of a command has variables about itself; those about the job are the same for all processes in it.
        environment = {name: value for name, value in request["environment"].items() if not name.startswith("SLURM")}
        environment.update({name: value for name, value in os.environ.items() if name.startswith("SLURM")})
        stdin, stdout, stderr = streams
        process = subprocess.Popen(
            request["argv"],
            cwd="/",
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        process.returncode = 0  # `_reap` waits for it
        self._waiting[process.pid] = connection
        _send(connection, {"pid": process.pid})

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (result := os.waitpid(-1, os.WNOHANG))[0]:
                connection = self._waiting.pop(result[0], None)
                if connection is not None:
                    with contextlib.suppress(OSError):
                        _send(connection, {"code": os.waitstatus_to_exitcode(result[1])})
                    connection.close()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, ancillary, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(_STREAMS * 4))
    streams = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            streams.frombytes(content)
    while not data.endswith(b"\n") and len(data) < _REQUEST_MAX_BYTES and (more := connection.recv(1 << 16)):
        data += more
    return json.loads(data), list(streams)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def clear(folder: str) -> None:
    """Remove what a cluster's state folder has besides logs and runs, and the secrets of its agent."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open(os.path.join(folder, "lock")) as lock:
            secrets = json.load(lock)["secrets"]
        for path in (secrets, secrets.removesuffix(".secrets") + ".certificate"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.name in KEPT:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def _end_earlier(folder: str) -> None:
    """Kill the agent of a state folder that an earlier step has left, and what it has started, and wait for their end.

    Slurm kills the step's own processes when its srun dies, but finds these only if it tracks processes by cgroups.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open(os.path.join(folder, "lock")) as lock:
            pid = int(json.load(lock)["pid"])
        with open(f"/proc/{pid}/environ", "rb") as environment:  # readable for processes of this user alone
            if b"\0TFCLUSTER_AGENT_MARK=" not in b"\0" + environment.read():
                return  # the pid is that of another process now
        left = [pid, *_descendants(pid)]
        for each in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        deadline = time.monotonic() + _REQUEST_SECONDS / 2
        while any(map(_is_alive, left)) and time.monotonic() < deadline:
            time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as status:
        return status.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def _descendants(pid: int) -> Iterator[int]:
    """Yield the descendants of a process, each after its parent."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in map(int, children.read().split()):
                    yield child
                    yield from _descendants(child)


def _end_descendants() -> None:
    """End all descendants of this process, which get those of a process that has exited as children."""
    deadline = time.monotonic() + _TERMINATE_SECONDS
    terminated: set[int] = set()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        left = list(_descendants(os.getpid()))
        if not left:
            return
        is_late = time.monotonic() > deadline
        for pid in left:
            if is_late or pid not in terminated:
                terminated.add(pid)
                # A process of another user, as after sudo, is left to Slurm.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        time.sleep(0.05)


def main() -> None:
    """Hold this node until its job ends."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir("/")
    guard = os.getpid()
    holder = os.fork()
    if holder:
        sys.exit(_guard(holder))
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a fork does not inherit it
    if os.getppid() == guard:
        NodeHolder().serve()


def _guard(holder: int) -> int:
    """Wait for the holder, which Slurm may have killed; then end what it has left, and return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(holder, signal.SIGTERM))
    code = os.waitstatus_to_exitcode(os.waitpid(holder, 0)[1])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_descendants()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
