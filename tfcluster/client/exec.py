"""Run commands with a cluster's environment: one here or on a host, or one on each host at the same time."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import IO, NoReturn

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.environment import ExecTarget, environment_here, request_environment
from tfcluster.client.rpc.parallel import StreamContext, map_hosts, merge_streams
from tfcluster.errors import ExitCode
from tfcluster.paths import LOCAL_HOST
from tfcluster.protocol.api.cluster import ExecRequest
from tfcluster.transport.cluster_process import become, remote_argv

_OF_KEYS = (signal.SIGINT, signal.SIGQUIT)


def replace_process(cluster: Cluster, target: ExecTarget | None, command: Sequence[str]) -> NoReturn:
    """Replace this process by a command with the cluster's environment; on another host, run it and exit as it does.

    Without a target it is a client on this machine.
    """
    if target is None:
        become(*environment_here(cluster), command)
    if target.host == LOCAL_HOST:
        environment = request_environment(cluster, target)
        become(environment.variables, environment.network, command)
    sys.exit(_run_on_host(cluster, target, command))


def _run_on_host(cluster: Cluster, target: ExecTarget, command: Sequence[str]) -> int:
    """Run a command on another host by a program that has this process's streams; return its exit code.

    The program may end without the command, as ssh and docker do at a Ctrl-C. So the agent ends the command when this
    process has ended.
    """
    client = cluster.connect(target.host)
    exec_id = secrets.token_hex(8)
    # This comes before the request for the environment, so the agent knows the id before the command names it.
    with contextlib.closing(client.stream(ExecRequest(exec_id))) as running:
        environment = request_environment(cluster, target)
        argv = remote_argv(environment, target.task, command, exec_id=exec_id)
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        line = client.transport.command_line(argv, is_terminal=is_terminal)
        passed: list[int] = []
        with subprocess.Popen(line) as process:

            def pass_on(number: int, frame: FrameType | None) -> None:
                if not (is_terminal and number in _OF_KEYS):  # a terminal sends these to the program too
                    passed.append(number)
                    process.send_signal(number)

            for number in (*_OF_KEYS, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, pass_on)
            code = process.wait()
        if passed and client.transport.has_lost_host(code):  # as ssh, which a signal has ended
            code = -passed[0]
        # docker says that all went well when a signal has ended it, and the command as yet runs.
        if passed and code == 0 and not running.wait_readable(settings.EXEC_END_SECONDS):
            code = -passed[0]
    return code if code >= 0 else 128 - code


def start_supervised(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a supervised command, see `remote_argv`, which ends when its standard input is closed."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for this command, which ends the other one or passes it on
    )


def end_supervised(processes: Collection[subprocess.Popen[bytes]]) -> None:
    """End supervised commands, here and on their hosts."""
    for process in processes:
        with contextlib.suppress(OSError):
            pipe(process.stdin).close()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(settings.EXEC_TERMINATE_SECONDS + settings.SSH_EXIT_SECONDS)
        process.kill()
        process.wait()


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return a standard stream of a process that was started with pipes."""
    assert stream is not None, "it is a pipe"
    return stream


@dataclass(frozen=True)
class ExecLine:
    """A line that a command has printed on a host."""

    host: str
    line: str  # without its end
    is_error: bool


class HostCommands:
    """A command that runs on every host of a cluster at the same time, without standard input.

    As a context manager, it ends the commands that still run.

    Attributes:
        errors: Why the command could not be started on a host, by host.
    """

    def __init__(self, cluster: Cluster, command: Sequence[str]) -> None:
        def prepare(host: str) -> list[str]:
            environment = request_environment(cluster, ExecTarget(host))
            argv = remote_argv(environment, None, command, exec_id=None)
            return cluster.connect(host).transport.command_line(argv, is_terminal=False)

        lines, self.errors = map_hosts(cluster.hosts, prepare, settings.HOST_TIMEOUT_SECONDS)
        self.is_interrupted = False
        self._exit_code = 0
        self._processes = {host: start_supervised(line) for host, line in lines.items()}

    @property
    def exit_code(self) -> int:
        """Return the exit code of the first command that has failed, or that of a host that cannot be reached."""
        return self._exit_code or next((int(error.exit_code) for error in self.errors.values()), ExitCode.DONE)

    def __enter__(self) -> HostCommands:
        return self

    def __exit__(self, *error: object) -> None:
        end_supervised(self._processes.values())

    @contextlib.contextmanager
    def pass_interrupt(self) -> Iterator[None]:
        """Pass a SIGINT to all commands while their lines are still being read; a second one raises KeyboardInterrupt.

        The first raises nothing: an exception from a signal handler could occur between taking a line from the queue
        and showing it.
        """
        previous = signal.getsignal(signal.SIGINT)

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, previous)
            self.is_interrupted = True
            for process in self._processes.values():
                with contextlib.suppress(OSError):
                    os.write(pipe(process.stdin).fileno(), bytes([number]))

        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def lines(self) -> Generator[ExecLine, None, None]:
        """Yield the lines that the commands print, until all have ended."""
        streams = {
            f"{host}, {is_error}": partial(_read, host, process, is_error)
            for host, process in self._processes.items()
            for is_error in (False, True)
        }
        with contextlib.closing(merge_streams(streams)) as items:
            for _, item in items:
                if isinstance(item, ExecLine):
                    yield item
                elif isinstance(item, int) and not self._exit_code:
                    self._exit_code = item if item >= 0 else 128 - item


def _read(
    host: str, process: subprocess.Popen[bytes], is_error: bool, context: StreamContext
) -> Iterator[ExecLine | int]:
    """Yield the lines of one stream of a command, and after those of its standard output its return code."""
    stream = pipe(process.stderr if is_error else process.stdout)
    while line := stream.readline(settings.RUN_OUTPUT_LINE_MAX_BYTES):
        yield ExecLine(host, line.decode(errors="replace").removesuffix("\n"), is_error)
    if not is_error:
        yield process.wait()
