"""Run TensorBoard on the host that has the data, and forward it to this machine over the ssh connection that exists."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO

from tfcluster import boot, settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.environment import Place, request_environment
from tfcluster.client.logdir import LogFolder
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST
from tfcluster.transport.channel import HostUnreachableError
from tfcluster.transport.cluster_process import remote_words, supervised_words
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX
from tfcluster.transport.remote.tensorboard import TensorBoardReport, TensorBoardRequest, words_of
from tfcluster.transport.ssh_errors import SSH_FAILED

# What TensorBoard prints when it serves.
_URL = re.compile(rb"http://[^\s/]+:(\d+)/")


@dataclass
class TensorBoard:
    """A TensorBoard that serves."""

    url: str  # for a browser of this machine
    host: str
    logdir: str  # its log folder on the host
    _process: _Process

    def wait(self) -> ClusterError:
        """Wait until it ends by itself, and return the error for that."""
        return self._process.wait_for_end()


class NoLogFolderError(ClusterError):
    """The host has no such folder."""


@contextlib.contextmanager
def serve(cluster: Cluster | None, folder: LogFolder) -> Iterator[TensorBoard]:
    """Run TensorBoard until the context is left; then nothing of it is left, here or on the host.

    Without a cluster, the folder is on this machine. A host that has no such folder raises a NoLogFolderError.
    """
    local_port = _choose_port()
    with contextlib.ExitStack() as stack:
        if folder.host == LOCAL_HOST:
            start = TensorBoardRequest(folder.folders, folder.run_folder, local_port)
            line = supervised_words(words_of(start, sys.executable, boot.CODE))
        else:
            assert cluster is not None, "only a folder on this machine needs none"
            transport = cluster.connect(folder.host).transport
            environment = request_environment(cluster, Place(folder.host))
            words = words_of(
                TensorBoardRequest(folder.folders, folder.run_folder), environment.python, environment.code
            )
            words = remote_words(environment, None, words, is_supervised=True)
            line = transport.command_line(words, is_terminal=False)
        process = stack.enter_context(_Process(folder.host, line))
        started = process.read_start()
        if started.logdir is None:
            raise _no_folder(folder)
        if not started.is_installed:
            raise _not_installed(folder.host, started.python)
        port = process.read_port()
        if folder.host != LOCAL_HOST:
            stack.enter_context(transport.forward_port(local_port, port))
            _check(folder.host, local_port)
            port = local_port
        yield TensorBoard(f"http://localhost:{port}/", folder.host, started.logdir, process)


class _Process:
    """The process on this machine that is TensorBoard, or the ssh that runs it on a host.

    As a context manager, it ends TensorBoard.
    """

    def __init__(self, host: str, line: list[str]) -> None:
        self._host = host
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for this command, which ends TensorBoard
        )
        self._lines: deque[str] = deque(maxlen=settings.SSH_ERROR_LINES)
        self._port: SimpleQueue[int | None] = SimpleQueue()
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()  # from the beginning: a process that fills the pipe would be blocked

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *error: object) -> None:
        _stream(self._process.stdin).close()  # at which TensorBoard ends
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(settings.EXEC_TERMINATE_SECONDS + settings.SSH_EXIT_SECONDS)
        self._process.kill()
        self._process.wait()

    def read_start(self) -> TensorBoardReport:
        """Return what there is on the host; if TensorBoard is not started, raise an error that says why."""
        for line in _stream(self._process.stdout):
            if line.startswith(MESSAGE_PREFIX.encode()):  # a login shell may print lines, too
                threading.Thread(target=self._discard_output, daemon=True).start()
                return TensorBoardReport(**json.loads(line[len(MESSAGE_PREFIX) :]))
        _stream(self._process.stdout).close()
        raise self.wait_for_end()

    def read_port(self) -> int:
        """Return the port on which TensorBoard serves."""
        port = self._port.get()
        if port is None:
            raise self.wait_for_end()
        return port

    def wait_for_end(self) -> ClusterError:
        """Wait until the process ends by itself, and return the error for that."""
        code = self._process.wait()
        self._errors.join(settings.SSH_EXIT_SECONDS)
        if self._host != LOCAL_HOST and code == SSH_FAILED:
            return HostUnreachableError(
                self._host, "the connection was lost", "TensorBoard has ended there: try again."
            )
        lines = "".join(f"\n  {line}" for line in list(self._lines) if line)
        return ClusterError(f"TensorBoard on {self._host} ended with exit code {code}{lines}")

    def _read_errors(self) -> None:
        """Read what TensorBoard prints on its standard error: the line with its port, and what may explain its end."""
        with _stream(self._process.stderr) as stream:
            for line in stream:
                self._lines.append(line.decode(errors="replace").rstrip())
                if match := _URL.search(line):
                    self._port.put(int(match[1]))
        self._port.put(None)

    def _discard_output(self) -> None:
        with _stream(self._process.stdout) as stream:
            for _ in stream:
                pass


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "it is a pipe"
    return stream


def _choose_port() -> int:
    """Return TensorBoard's usual port if it is free, else another one."""
    for port in (settings.TENSORBOARD_PORT, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ClusterError("no port is free on this machine")


def _check(host: str, port: int) -> None:
    """Check that TensorBoard answers through the forwarded port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=settings.HOST_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/")
        connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise ClusterError(
            f"TensorBoard runs on host {host!r}, but ssh does not forward its port: {error}",
            hint=f"Allow it in the sshd_config of {host}: AllowTcpForwarding local.",
            exit_code=ExitCode.UNREACHABLE,
        ) from error
    finally:
        connection.close()


def _no_folder(folder: LogFolder) -> NoLogFolderError:
    where = f"on host {folder.host!r}" if folder.host != LOCAL_HOST else "on this machine"
    if folder.run_folder is None:
        return NoLogFolderError(f"there is no folder {folder.name} {where}", exit_code=ExitCode.USAGE)
    looked = f" ({', '.join(folder.folders)} does not exist)" if folder.folders else ""
    return NoLogFolderError(
        f"{folder.name} has no data for TensorBoard {where}{looked}",
        hint="A program has to write summaries: `run linear --logdir DIR` does. Name their folder: "
        "tfcluster tensorboard LOGDIR, or HOST:LOGDIR.",
        exit_code=ExitCode.USAGE,
    )


def _not_installed(host: str, python: str) -> ClusterError:
    where = "this machine" if host == LOCAL_HOST else f"host {host!r}"
    there = "" if host == LOCAL_HOST else f"tfcluster exec --on {host} -- "
    return ClusterError(
        f"TensorBoard is not installed for {python} on {where}",
        hint=f"Install it: {there}{shlex.quote(python)} -m pip install tensorboard (for traces "
        "tensorboard-plugin-profile, too). TensorFlow 2.21 does not bring it.",
    )
