"""The environment by which a process is part of a cluster, here or on another host, and commands that run with it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import IO, NoReturn

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import StreamContext, map_hosts, merge_streams, warn
from tfcluster.client.runs.locate import read_topology
from tfcluster.core.environment import client_variables, no_proxy_env
from tfcluster.core.topology import OPEN, join_address, matching_tasks
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.os.network import free_port
from tfcluster.paths import LOCAL_HOST
from tfcluster.private_network import PrivateNetwork
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest, ExecRequest
from tfcluster.transport.cluster_process import become, remote_argv

_OF_KEYS = (signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True)
class ExecTarget:
    """Where a process of a cluster runs, and as what."""

    host: str
    task: str | None = None  # short name of the task whose environment it has; None for that of a client


def find_exec_target(cluster: Cluster, name: str) -> ExecTarget:
    """Return what the name of a host or a task means.

    A task is named `worker:1`, `/job:worker/task:1`, or by its job if that has one task.
    """
    if name in cluster.hosts:
        return ExecTarget(name)
    tasks = {task.short: task for task in read_topology(cluster).tasks}
    try:
        matches = matching_tasks([name], list(tasks))
    except ClusterError as error:
        hosts = ", ".join(cluster.hosts)
        raise usage_error(f"no task or host {name!r}", f"{error.hint} The hosts are {hosts}.") from None
    if len(matches) > 1:
        raise usage_error(f"{name!r} has {len(matches)} tasks", f"Name one: {', '.join(matches)}.")
    return ExecTarget(tasks[matches[0]].host, matches[0])


def request_environment(cluster: Cluster, target: ExecTarget) -> EnvironmentReply:
    """Ask the agent of a host for an environment."""
    return cluster.connect(target.host).call(EnvironmentRequest(target.task))


def environment_here(cluster: Cluster) -> tuple[dict[str, str], PrivateNetwork | None]:
    """Return the environment of a client of the cluster on this machine; a note says if it is not one of its hosts.

    With the variables comes the private network in which alone a client can connect to the servers; None for none.
    """
    if LOCAL_HOST in cluster.hosts:
        reply = request_environment(cluster, ExecTarget(LOCAL_HOST))
        # The agent has replied with the exceptions from the proxy of its own environment.
        proxy = no_proxy_env(os.environ, reply.variables["no_grpc_proxy"].split(","))
        return {**reply.variables, **proxy}, reply.network
    address = join_address(socket.gethostname(), free_port())
    topology = read_topology(cluster)
    if topology.network != OPEN:
        warn(
            f"note: this machine is not a host of {cluster.name}, whose servers only its hosts can connect to: "
            f"`tfcluster exec --on {cluster.head} -- COMMAND` runs a command there"
        )
    return client_variables(topology, None, address, os.environ), None


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
