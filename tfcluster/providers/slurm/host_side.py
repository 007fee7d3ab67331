"""On a node of a job: agents are started by the step that holds the node, so that they end with the job."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tfcluster import settings
from tfcluster.core.status import JobStatus
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import peer_credentials
from tfcluster.protocol.serialization import decode
from tfcluster.providers.host_side import HostSide, StartAgent
from tfcluster.providers.slurm.job import HostJob
from tfcluster.providers.slurm.node_holder import socket_name

_HOLDER_SECONDS = 60.0  # for the step that holds the nodes of a job to start there, once the job runs
_COMMAND_SECONDS = 60.0  # for a command of Slurm, whose controller may be busy


class SlurmHostSide(HostSide):
    """A node of a job."""

    end_cause = "the time limit of the Slurm job was reached"

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._job = decode(HostJob, facts, lenient=True)
        self.grace = self._job.grace

    def join(self, state: Path) -> StartAgent:
        """Have the agents that this process starts belong to the job in whose step it runs.

        The first time on this node in this job, what another job has left in the cluster's state folder is removed,
        except logs and runs: a journal names tasks that must not be started again.
        """
        job = self._job.id
        if os.environ.get("SLURM_JOB_ID") != str(job):
            raise ClusterError(
                f"this is not in Slurm job {job}: nothing is started outside of it", exit_code=ExitCode.NOT_RUNNING
            )
        with _connect(job) as connection, connection.makefile("rb") as replies:
            with contextlib.suppress(OSError):  # the holder has ended, which `_read` reports
                connection.sendall(_encode({"folder": str(state)}))
            _read(replies, job)
        return lambda argv, environment: HeldProcess(job, argv, environment)

    def read_end(self) -> int | None:
        """Ask Slurm when the job ends, in Unix seconds; None if its time is not limited."""
        squeue = self._job.squeue
        program = squeue if os.path.exists(squeue) else shutil.which("squeue") or squeue
        try:
            result = subprocess.run(
                [program, "--noheader", f"--jobs={self._job.id}", "--format=%e"],
                env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
                capture_output=True,
                text=True,
                errors="surrogateescape",
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClusterError(f"Slurm job {self._job.id}: {squeue}: {error}") from error
        ends = result.stdout.split()  # a line for each component of a heterogeneous job
        if result.returncode or not ends:
            said = result.stderr.strip() or "it does not know the job"
            raise ClusterError(f"Slurm job {self._job.id}: {squeue}: {said}")
        return min((int(each) for each in ends if each.isdecimal()), default=None)

    def job_status(self, nodes: tuple[str, ...], ends_in_s: float | None) -> JobStatus:
        """Return the job, which runs."""
        return JobStatus(self._job.id, "running", nodes, ends_in_s)


HOST_SIDE = SlurmHostSide


class HeldProcess:
    """A process that the holder of a job's node has started."""

    def __init__(self, job: int, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._job = job
        with contextlib.ExitStack() as unless_started:
            self._connection = unless_started.enter_context(_connect(job))
            ours: list[IO[bytes]] = []
            theirs: list[int] = []
            for is_input in (True, False, False):
                read, write = os.pipe()
                end = os.fdopen(write, "wb") if is_input else os.fdopen(read, "rb")
                ours.append(unless_started.enter_context(end))
                theirs.append(read if is_input else write)
            self.stdin: IO[bytes] | None
            self.stdout: IO[bytes] | None
            self.stderr: IO[bytes] | None
            self.stdin, self.stdout, self.stderr = ours
            try:
                data = _encode({"argv": list(argv), "environment": dict(environment)})
                with contextlib.suppress(OSError):  # as above
                    sent = socket.send_fds(self._connection, [data], theirs)
                    self._connection.sendall(data[sent:])
            finally:
                for fd in theirs:
                    os.close(fd)
            self._replies = unless_started.enter_context(self._connection.makefile("rb"))
            self.pid: int = _read(self._replies, job)["pid"]
            unless_started.pop_all()

    def wait(self) -> int:
        """Wait until the process has exited, and return its exit code."""
        self._connection.settimeout(None)
        return int(_read(self._replies, self._job)["code"])


def _connect(job: int) -> socket.socket:
    """Connect to the holder, which starts a moment after its job."""
    deadline = time.monotonic() + _HOLDER_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_HOLDER_SECONDS)
        try:
            connection.connect(socket_name())
            break
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the step of Slurm job {job} that holds this node does not answer: {error.strerror}",
                    hint="`tfcluster status` shows how it ended; `tfcluster down`, then `tfcluster up`, starts the "
                    "cluster again.",
                    exit_code=ExitCode.UNREACHABLE,
                ) from error
            time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)
    if peer_credentials(connection)[1] != os.getuid():
        connection.close()
        raise ClusterError(f"the socket of the step that holds this node in job {job} belongs to another user")
    return connection


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _read(replies: IO[bytes], job: int) -> dict[str, Any]:
    line = b""
    with contextlib.suppress(OSError):
        line = replies.readline()
    if not line:
        raise ClusterError(f"the step of Slurm job {job} that holds this node ended before it replied")
    message: dict[str, Any] = json.loads(line)
    return message
