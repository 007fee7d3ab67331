"""Run commands with a cluster's environment: one in place of this process, or one on each host at the same time."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, NoReturn

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.environment import Place, environment_here, request_environment
from tfcluster.client.rpc.parallel import map_hosts
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST
from tfcluster.transport.cluster_process import become, remote_words


def replace_process(cluster: Cluster, place: Place | None, command: Sequence[str]) -> NoReturn:
    """Replace this process by a command with the cluster's environment, or by the ssh that runs it on another host.

    Without a place it is a client on this machine.
    """
    if place is None:
        become(*environment_here(cluster), command)
    environment = request_environment(cluster, place)
    if place.host == LOCAL_HOST:
        become(environment.variables, environment.network, command)
    words = remote_words(environment, place.task, command, is_supervised=False)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    line = cluster.connect(place.host).transport.command_line(words, is_terminal=is_terminal)
    os.execvp(line[0], line)


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
            environment = request_environment(cluster, Place(host))
            words = remote_words(environment, None, command, is_supervised=True)
            return cluster.connect(host).transport.command_line(words, is_terminal=False)

        self.errors: dict[str, ClusterError] = {}
        self.is_interrupted = False
        self._entries: queue.Queue[ExecLine | str] = queue.Queue(settings.RESPONSE_QUEUE_ITEMS)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._running = 0
        self._exit_code = 0
        for host, line in map_hosts(cluster.hosts, prepare, settings.HOST_TIMEOUT_SECONDS).items():
            if isinstance(line, ClusterError):
                self.errors[host] = line
            else:
                self._start(host, line)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the first command that has failed, or that of a host that cannot be reached."""
        return self._exit_code or next((int(error.exit_code) for error in self.errors.values()), ExitCode.DONE)

    def __enter__(self) -> HostCommands:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            assert process.stdin is not None, "it is a pipe"
            with contextlib.suppress(OSError):
                process.stdin.close()  # which ends the command on the host
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(settings.EXEC_TERMINATE_SECONDS + settings.SSH_EXIT_SECONDS)
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def pass_interrupt(self) -> Iterator[None]:
        """Pass a SIGINT to all commands while their lines are still being read; a second one raises KeyboardInterrupt.

        The first raises nothing: an exception from a signal handler could occur between taking an entry from the queue
        and counting it.
        """
        previous = signal.getsignal(signal.SIGINT)

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, previous)
            self.is_interrupted = True
            for process in self._processes.values():
                assert process.stdin is not None, "it is a pipe"
                with contextlib.suppress(OSError):
                    os.write(process.stdin.fileno(), bytes([number]))

        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def lines(self) -> Generator[ExecLine, None, None]:
        """Yield the lines that the commands print, until all have ended."""
        while self._running:
            try:
                entry = self._entries.get(timeout=settings.SIGNAL_POLL_SECONDS)
            except queue.Empty:
                continue  # a signal that came just before the wait, or to another thread, does not end it
            if isinstance(entry, ExecLine):
                yield entry
                continue
            self._running -= 1
            code = self._processes[entry].returncode
            self._exit_code = self._exit_code or (code if code >= 0 else 128 - code)

    def _start(self, host: str, line: Sequence[str]) -> None:
        process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for this command, which passes it on
        )
        self._processes[host] = process
        self._running += 1
        threading.Thread(target=self._read, args=(host, process), daemon=True).start()

    def _read(self, host: str, process: subprocess.Popen[bytes]) -> None:
        """Read the output of one command to its end, in a thread of its own."""
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        errors = threading.Thread(target=self._read_stream, args=(host, process.stderr, True), daemon=True)
        errors.start()
        self._read_stream(host, process.stdout, False)
        errors.join()
        process.wait()
        self._entries.put(host)

    def _read_stream(self, host: str, stream: IO[bytes], is_error: bool) -> None:
        while line := stream.readline(settings.RUN_OUTPUT_LINE_MAX_BYTES):
            self._entries.put(ExecLine(host, line.decode(errors="replace").removesuffix("\n"), is_error))
