"""Find where the data for TensorBoard is (a folder here or on a host, or what a run writes to), and run it there.

From another host its port is forwarded to this machine over the connection that exists.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any

from tfcluster import boot, settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.exec import ExecTarget, request_environment
from tfcluster.client.runs.locate import locate_run
from tfcluster.client.runs.requests import list_runs
from tfcluster.core.runs import find_run, matching_runs
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.paths import LOCAL_HOST, state_folder
from tfcluster.protocol.api.runs import RunsRequest, RunSummary
from tfcluster.transport.cluster_process import remote_argv, supervised_argv
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX
from tfcluster.transport.remote.tensorboard import TensorBoardReport, TensorBoardRequest, tensorboard_argv

if TYPE_CHECKING:
    from tfcluster.transport.remote_transport import HostTransport

# What TensorBoard prints when it serves.
_URL = re.compile(rb"http://[^\s/]+:(\d+)/")
# The options by which scripts name the folder for their summaries.
_OPTIONS = ("logdir", "log_dir", "tensorboard_dir", "summary_dir", "model_dir", "output_dir")


@dataclass(frozen=True)
class LogFolder:
    """Where data may be."""

    host: str  # LOCAL_HOST for this machine
    folders: tuple[str, ...]  # the log folder: the first of these that exists
    run_folder: str | None  # the run's own folder, which may have the data; None if it is not of a run
    name: str  # what the user asked for


def find_here(name: str) -> LogFolder | None:
    """Return the folder of a name if that is one on this machine, for which no cluster is needed; else None."""
    return LogFolder(LOCAL_HOST, (os.path.abspath(name),), None, name) if os.path.isdir(name) else None


def find_folders(cluster: Cluster, name: str | None) -> list[LogFolder]:
    """Return where the data of a name may be, in the order in which to look.

    A name is a run's id or a unique prefix of it, a path, or `HOST:PATH`; None means the latest run that names a
    folder, or else the latest run.
    """
    host, _, path = (name or "").partition(":")
    if path and host in cluster.hosts:
        return [LogFolder(host, (path,), None, str(name))]
    if name is not None and "/" in name:
        others = [host for host in cluster.hosts if host != LOCAL_HOST]
        return [LogFolder(host, (name,), None, name) for host in others or [LOCAL_HOST]]
    run, host = _find_run(cluster, name)
    is_here = host == LOCAL_HOST
    state = str(state_folder(cluster.name)) if is_here else request_environment(cluster, ExecTarget(host)).state
    folder = os.path.join(state, "runs", run.run)
    named = tuple(named_folders(run.parameters, folder))
    return [LogFolder(host, named, folder, run.run)]


def _find_run(cluster: Cluster, name: str | None) -> tuple[RunSummary, str]:
    """Return a run, and the host that has its record."""
    if name is None:
        runs, _ = list_runs(cluster, None)
        if not runs:
            raise usage_error(
                f"there is no run of {cluster.name}", "Name a folder: tfcluster tensorboard LOGDIR, or HOST:LOGDIR."
            )
        name = str(next((run for run in reversed(runs) if any(named_folders(run["parameters"], ""))), runs[-1])["run"])
    leader, run_id = locate_run(cluster, name, start=True)
    summaries = {run.run: run for run in leader.connect_head().call(RunsRequest(None), start=True).runs}
    if not matching_runs(run_id, summaries):
        raise usage_error(
            f"there is no folder and no run {name!r}",
            "`tfcluster runs` lists the runs. A folder on another host is HOST:LOGDIR.",
        )
    return summaries[find_run(run_id, summaries)], leader.head


def named_folders(parameters: Mapping[str, Any], run_folder: str) -> Iterator[str]:
    """Yield the log folders that a run's parameters name.

    A script runs in `run_folder` if the user's folder does not exist on the host.
    """
    if isinstance(logdir := parameters.get("logdir"), str):
        yield logdir
    args = parameters.get("args")
    words = [str(word) for word in args] if isinstance(args, list) else []
    for word, following in zip_longest(words, words[1:], fillvalue=""):  # `--name=value` and `--name value`
        name, equals, value = word.lstrip("-").partition("=")
        value = value if equals else following
        if "{" in value:  # each process of `launch` has a folder of its own: all of them are in this one
            value = os.path.dirname(value.partition("{")[0])
        if word.startswith("-") and name.replace("-", "_") in _OPTIONS and value:
            yield str(Path(str(parameters.get("cwd", "")), value))
            yield str(Path(run_folder, value))


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
            transport = None
            line = supervised_argv(tensorboard_argv(start, sys.executable, boot.CODE))
        else:
            assert cluster is not None, "only a folder on this machine needs none"
            transport = cluster.connect(folder.host).transport
            environment = request_environment(cluster, ExecTarget(folder.host))
            argv = tensorboard_argv(
                TensorBoardRequest(folder.folders, folder.run_folder), environment.python, environment.code
            )
            argv = remote_argv(environment, None, argv, exec_id=None, is_inside=False)  # its port is forwarded
            line = transport.command_line(argv, is_terminal=False)
        process = stack.enter_context(TensorBoard(folder.host, line, transport))
        started = process.read_start()
        if started.logdir is None:
            raise _no_folder(folder)
        if not started.is_installed:
            where = "this machine" if transport is None else f"host {folder.host!r}"
            there = "" if transport is None else f"tfcluster exec --on {folder.host} -- "
            raise ClusterError(
                f"TensorBoard is not installed for {started.python} on {where}",
                hint=f"Install it: {there}{shlex.quote(started.python)} -m pip install tensorboard (for traces "
                "tensorboard-plugin-profile, too). TensorFlow 2.21 does not include it.",
            )
        port = process.read_port()
        if transport is not None:
            stack.enter_context(transport.forward_port(local_port, port))
            _check(folder.host, local_port)
            port = local_port
        process.url, process.logdir = f"http://localhost:{port}/", started.logdir
        yield process


class TensorBoard:
    """The process on this machine that is TensorBoard, or that runs it on a host.

    As a context manager, it ends TensorBoard. The transport is that to the host, or None for this machine.
    """

    url = ""  # for a browser of this machine
    logdir = ""  # its log folder on the host

    def __init__(self, host: str, line: list[str], transport: HostTransport | None) -> None:
        self.host = host
        self._transport = transport
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for this command, which ends the other one
        )
        self._lines: deque[str] = deque(maxlen=settings.SSH_ERROR_LINES)
        self._port: SimpleQueue[int | None] = SimpleQueue()
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()  # from the beginning: a process that fills the pipe would be blocked

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            _pipe(self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(settings.EXEC_TERMINATE_SECONDS + settings.SSH_EXIT_SECONDS)
        self._process.kill()
        self._process.wait()

    def read_start(self) -> TensorBoardReport:
        """Return what there is on the host; if TensorBoard is not started, raise an error that says why."""
        for line in _pipe(self._process.stdout):
            if line.startswith(MESSAGE_PREFIX.encode()):  # a login shell may print lines, too
                threading.Thread(target=self._discard_output, daemon=True).start()
                return TensorBoardReport(**json.loads(line[len(MESSAGE_PREFIX) :]))
        _pipe(self._process.stdout).close()
        raise self.wait_for_end()

    def read_port(self) -> int:
        """Return the port on which TensorBoard serves; raise an error with its last lines if it does not say one."""
        try:
            port = self._port.get(timeout=settings.TENSORBOARD_START_SECONDS)
        except Empty:
            raise ClusterError(
                f"TensorBoard on {self.host} has not said within {settings.TENSORBOARD_START_SECONDS:g} s where it "
                f"serves{self._last_lines()}"
            ) from None
        if port is None:
            raise self.wait_for_end()
        return port

    def wait_for_end(self) -> ClusterError:
        """Wait until the process ends by itself, and return the error for that."""
        code = self._process.wait()
        self._errors.join(settings.SSH_EXIT_SECONDS)
        if self._transport is not None and self._transport.has_lost_host(code):
            return HostUnreachableError(
                self.host, "the connection was lost", "TensorBoard has stopped there: try again."
            )
        return ClusterError(f"TensorBoard on {self.host} ended with exit code {code}{self._last_lines()}")

    def _last_lines(self) -> str:
        return "".join(f"\n  {line}" for line in list(self._lines) if line)

    def _read_errors(self) -> None:
        """Read what TensorBoard prints on its standard error: the line with its port, and what may explain its end."""
        with _pipe(self._process.stderr) as stream:
            for line in stream:
                self._lines.append(line.decode(errors="replace").rstrip())
                if match := _URL.search(line):
                    self._port.put(int(match[1]))
        self._port.put(None)

    def _discard_output(self) -> None:
        with _pipe(self._process.stdout) as stream:
            for _ in stream:
                pass


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
            f"TensorBoard runs on host {host!r}, but does not answer through the connection to it: {error}",
            hint="Try again.",
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


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return a standard stream of a process that was started with pipes."""
    assert stream is not None, "it is a pipe"
    return stream
