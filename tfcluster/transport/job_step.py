"""On a node of a job: have agents started by the step that holds the node, so that they end with the job."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import peer_credentials
from tfcluster.transport.remote.node_holder import socket_name

_job: int | None = None


def is_joined() -> bool:
    """Return whether the agents that this process starts belong to a job."""
    return _job is not None


def join(job: int, folder: Path) -> None:
    """Have the agents that this process starts belong to the job in whose step it runs.

    The first time on this node in this job, what another job has left in the cluster's state folder is removed, except
    logs and runs: a journal names tasks that must not be started again.
    """
    global _job
    if os.environ.get("SLURM_JOB_ID") != str(job):
        raise ClusterError(
            f"this is not in Slurm job {job}: nothing is started outside of it", exit_code=ExitCode.NOT_RUNNING
        )
    _job = job
    with _connect() as connection, connection.makefile("rb") as replies:
        with contextlib.suppress(OSError):  # the holder has ended, which `_read` reports
            connection.sendall(_encode({"folder": str(folder)}))
        _read(replies)


class HeldProcess:
    """A process that the holder has started; it has what `LocalTransport` uses of a Popen."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as unless_started:
            self._connection = unless_started.enter_context(_connect())
            ours: list[IO[bytes]] = []
            theirs: list[int] = []
            for is_input in (True, False, False):
                read, write = os.pipe()
                end = os.fdopen(write, "wb") if is_input else os.fdopen(read, "rb")
                ours.append(unless_started.enter_context(end))
                theirs.append(read if is_input else write)
            self.stdin, self.stdout, self.stderr = ours
            try:
                data = _encode({"argv": list(argv), "environment": dict(environment)})
                with contextlib.suppress(OSError):  # see `join`
                    sent = socket.send_fds(self._connection, [data], theirs)
                    self._connection.sendall(data[sent:])
            finally:
                for fd in theirs:
                    os.close(fd)
            self._replies = unless_started.enter_context(self._connection.makefile("rb"))
            self.pid: int = _read(self._replies)["pid"]
            unless_started.pop_all()

    def wait(self) -> int:
        """Wait until the process has exited, and return its exit code."""
        self._connection.settimeout(None)
        return int(_read(self._replies)["code"])


def _connect() -> socket.socket:
    """Connect to the holder, which starts a moment after its job."""
    deadline = time.monotonic() + settings.SLURM_HOLDER_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(settings.SLURM_HOLDER_SECONDS)
        try:
            connection.connect(socket_name())
            break
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the step of Slurm job {_job} that holds this node does not answer: {error.strerror}",
                    hint="`tfcluster status` shows how it ended; `tfcluster down`, then `tfcluster up`, starts the "
                    "cluster again.",
                    exit_code=ExitCode.UNREACHABLE,
                ) from error
            time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)
    if peer_credentials(connection)[1] != os.getuid():
        connection.close()
        raise ClusterError(f"the socket of the step that holds this node in job {_job} belongs to another user")
    return connection


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _read(replies: IO[bytes]) -> dict[str, Any]:
    line = b""
    with contextlib.suppress(OSError):
        line = replies.readline()
    if not line:
        raise ClusterError(f"the step of Slurm job {_job} that holds this node ended before it replied")
    message: dict[str, Any] = json.loads(line)
    return message
