"""The driver of a run: the process that starts the run's program in a child process and supervises it.

The driver outlives the agent and exits with the run. As the program has its own process, it can end with a regular
shutdown of its interpreter. The driver does what the program itself cannot do: it restricts the ports that the program
opens, kills a program whose shutdown takes too long, and records how the program ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from ipaddress import IPv4Address, IPv6Address
from typing import NoReturn

from tfcluster import settings
from tfcluster.core.caller import OutputStreams
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import code_cache
from tfcluster.process_handle import ProcessHandle, send_signal
from tfcluster.processes import daemonize, run_program
from tfcluster.processes.code_tree import clear_tree, enter_tree
from tfcluster.processes.listen_guard import ListenGuard
from tfcluster.processes.netinfo import addresses_of
from tfcluster.processes.run_output import STDERR, OutputCapture
from tfcluster.processes.run_spec import ProgramEnd, RunSpec, acquire_run
from tfcluster.processes.script_end import final_event
from tfcluster.processes.standard_streams import receive_stdin
from tfcluster.protocol.codec import Decoder

# What a terminal or a shell sends to all processes of the foreground process group.
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


def main(spec: RunSpec) -> None:
    """Run the driver of a run. The driver exits as the program does: with its exit code, or by its signal.

    This function does not return. In the program's process it ends with the exception that ends the interpreter.

    Args:
        spec: The run.

    Raises:
        SystemExit: In the program's process: the program was a script.
    """
    folder = spec.folder
    daemonize.detach(f"tfcluster: {spec.cluster} {spec.run}")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the program can receive it
    gc.enable()  # the fork server has disabled it; its descriptors are closed now, and its objects are frozen
    if not acquire_run(folder, ProcessHandle.from_pid(os.getpid())):
        os._exit(1)  # the agent has ended the run before its driver started
    started_at = time.monotonic()
    try:
        cluster = None if spec.peers is None else addresses_of(Host(*each) for each in spec.peers.items())
        name = spec.caller.stdin if spec.caller is not None else None
        stdin = None if name is None else receive_stdin(name)
        spec = enter_tree(spec, code_cache())
    except OSError as error:
        _fail(spec, ClusterError(str(error)))
    except ClusterError as error:
        _fail(spec, error)
    daemonize.become_subreaper()
    driver = os.getpid()
    try:
        capture = OutputCapture(folder, spec.streams or OutputStreams(is_shared=True))
        link, program_link = socket.socketpair()
        pid = os.fork()
    except OSError as error:
        _fail(spec, ClusterError(f"no process could be started for the program of {spec.run}: {error.strerror}"))
    if pid == 0:
        link.close()
        run_program.main(spec, driver, program_link, capture.program_fds, stdin)
    program_link.close()
    capture.close_program_fds()
    if stdin is not None:
        os.close(stdin)
    with contextlib.suppress(OSError):  # the program does this too, but may not have come so far when it is signalled
        os.setpgid(pid, pid)
    with link:
        _Supervisor(spec, pid, link, capture, cluster, started_at).run()


def _fail(spec: RunSpec, error: ClusterError) -> NoReturn:
    """Write the event of a run that failed before its program started, and exit."""
    try:
        spec.emit("error", error=error.to_json())
    except ClusterError as problem:  # the event cannot be written, so only the log can have the error
        print(error.message, problem.message, sep="\n", file=sys.stderr, flush=True)
    os._exit(1)


class _Supervisor:
    """Supervises the process of a run's program.

    Args:
        spec: The run.
        pid: The pid of the program's process, a child of this process.
        link: The driver's end of a socket pair with the program's process.
        capture: Captures the program's output.
        cluster: The addresses that may connect to the program's ports, or None if all may.
        started_at: The time at which the driver started, in seconds of time.monotonic().
    """

    def __init__(
        self,
        spec: RunSpec,
        pid: int,
        link: socket.socket,
        capture: OutputCapture,
        cluster: frozenset[IPv4Address | IPv6Address] | None,
        started_at: float,
    ) -> None:
        self._spec = spec
        self._folder = spec.folder
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._link = link
        # A child process that the program has left behind may keep the program's end open, so reading must not block.
        # The socket is non-blocking because recv_fds() ignores its flags, such as MSG_DONTWAIT.
        link.setblocking(False)
        self._capture = capture
        self._cluster = cluster
        self._started_at = started_at
        self._guard: ListenGuard | None = None
        self._decoder = Decoder()
        self._end: ProgramEnd | None = None
        # The time by which a program that has sent its ProgramEnd, or that has been sent SIGTERM, must have exited.
        self._deadline: float | None = None
        self._terminated = self._interrupted = False

    def run(self) -> NoReturn:
        """Supervise the program until its process has exited, then exit in the same way."""
        wakeup = _wake_on_signals()
        poll = select.poll()
        for fd in (*self._capture.streams, self._pidfd, self._link.fileno(), wakeup.fileno()):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, events in poll.poll(self._poll_timeout()):
                if fd in self._capture.streams:
                    if not self._capture.read(fd) and fd not in self._capture.streams:
                        poll.unregister(fd)
                elif fd == self._pidfd:
                    self._receive()  # what the program sent before it exited
                    self._conclude()
                elif fd == wakeup.fileno():
                    self._handle_signals(wakeup.recv(1 << 10))
                elif self._guard is not None and fd == self._guard.fileno():
                    if events & select.POLLIN:
                        self._guard.handle()
                    else:  # all processes with the trap have exited
                        poll.unregister(fd)
                elif not self._receive():  # the program has exited, or a script has closed the socket
                    poll.unregister(self._link)
                elif self._guard is not None:
                    poll.register(self._guard, select.POLLIN)
            self._enforce_limits()

    def _poll_timeout(self) -> float:
        """Return the timeout of the poll in milliseconds, after which the deadline and the folder are checked."""
        seconds = settings.DRIVER_POLL_SECONDS
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - time.monotonic()))
        return 1000 * seconds

    def _handle_signals(self, numbers: bytes) -> None:
        for number in filter(_TERMINAL_SIGNALS.__contains__, numbers):
            if number == signal.SIGWINCH:
                self._capture.resize()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)
        self._interrupted |= signal.SIGINT in numbers
        if signal.SIGTERM in numbers:
            self._terminate()
        self._reap_orphans()

    def _terminate(self) -> None:
        """Send SIGTERM to the program and set the deadline for its exit."""
        self._terminated = True
        self._deadline = time.monotonic() + settings.DRIVER_TERMINATE_SECONDS
        send_signal(self._pidfd, signal.SIGTERM)

    def _reap_orphans(self) -> None:
        """Reap the daemons of the program that have exited, since this process is their parent; not the program."""
        while True:
            exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if exited is None or exited.si_pid == self._pid:
                return
            os.waitpid(exited.si_pid, 0)

    def _enforce_limits(self) -> None:
        """Kill the program if its deadline has passed, or if the run's folder has been deleted.

        Without the folder, no agent could find the result.
        """
        if not self._folder.exists() or (self._deadline is not None and time.monotonic() >= self._deadline):
            send_signal(self._pidfd, signal.SIGKILL)

    def _receive(self) -> bool:
        """Handle all that the program has sent: first the descriptor of its trap, if it has one, last its ProgramEnd.

        Returns:
            False if the program's end of the socket pair has been closed, so that nothing more can arrive.
        """
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._link, 1 << 16, 1)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not data:
                return False
            for fd in fds:
                assert self._cluster is not None, "only a program whose ports are restricted has a trap"
                self._guard = ListenGuard(fd, self._cluster, self._report_refused_port)
            for message in self._decoder.feed(data):
                if message:
                    self._end = ProgramEnd(**message)
                    if not self._terminated:
                        self._deadline = time.monotonic() + settings.DRIVER_EXIT_SECONDS

    def _report_refused_port(self, why: str) -> None:
        self._print(f"tfcluster: this program may not listen: {why}")

    def _print(self, line: str) -> None:
        """Add a line to the program's standard error."""
        self._capture.recorder.append(STDERR, f"{line}\n".encode())

    def _conclude(self) -> NoReturn:
        """Exit as the program has exited; if it was a script, write the final event of the run first.

        If the program was terminated, its remaining child processes are killed. Otherwise its background processes
        continue, as they would without a driver.
        """
        if self._terminated:
            # Do this before the program is reaped, after which its pid may be reused for another process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left, or none of this user's
                os.killpg(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._capture.drain()
        if code < 0 and self._end is not None:  # killed during shutdown, after all of its own code had run
            code = self._end.exit_code
        # The agent knows why a run was terminated. A script may also exit with 143 by itself, such as on preemption.
        if self._spec.traits.is_script and not (self._terminated and (code < 0 or code == ExitCode.TERMINATED)):
            end = self._end or ProgramEnd(code, "", time.monotonic() - self._started_at, {}, [])
            if left := clear_tree(self._spec):
                self._print(left)
            event = final_event(self._spec, code, end, self._interrupted, self._capture.recorder.lost_bytes)
            try:
                self._spec.emit(**event)
            except ClusterError as problem:
                self._print(problem.message)
                code = code or 1
        if self._capture.streams and os.fork() == 0:  # the program has left background processes
            daemonize.set_process_title(f"tfcluster: {self._spec.cluster} {self._spec.run} output")
            self._capture.record_until_closed()
            os._exit(0)
        if code < 0:
            _end_by_signal(-code)
        os._exit(code)


def _wake_on_signals() -> socket.socket:
    """Install handlers by which signals make a socket readable, and neither end nor stop this process.

    Returns:
        The socket, from which the numbers of the signals are read.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    for number in (*_TERMINAL_SIGNALS, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *arguments: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return reading


def _end_by_signal(number: int) -> NoReturn:
    """End this process by a signal, without a core dump, as the program has already written one."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(1)  # reached if the signal's default action does not end a process
