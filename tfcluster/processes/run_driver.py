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
from pathlib import Path
from typing import NoReturn

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.process_handle import ProcessHandle, send
from tfcluster.processes import daemonize, run_program
from tfcluster.processes.listen_guard import ListenGuard
from tfcluster.processes.netinfo import addresses_of
from tfcluster.processes.run_spec import OUTPUT, ProgramEnd, RunSpec, acquire_run
from tfcluster.protocol.codec import Decoder, Message


def main(job: RunSpec) -> None:
    """Run the driver of a run. The driver exits as the program does: with its exit code, or by its signal.

    This function does not return. In the program's process it ends with the exception that ends the interpreter.

    Args:
        job: The run.

    Raises:
        SystemExit: In the program's process: the program was a script.
    """
    folder = job.run_folder
    daemonize.detach(f"tfcluster: {job.cluster} {job.run}", log=folder / OUTPUT)
    gc.enable()  # the fork server has disabled it; its descriptors are closed now, and its objects are frozen
    if not acquire_run(folder, ProcessHandle.of(os.getpid())):
        os._exit(1)  # the agent has ended the run before its driver started
    began = time.monotonic()
    try:
        cluster = None if job.peers is None else addresses_of(Host(*each) for each in job.peers.items())
    except OSError as error:
        _fail(job, ClusterError(str(error)))
    driver = os.getpid()
    try:
        ours, theirs = socket.socketpair()
        pid = os.fork()
    except OSError as error:
        _fail(job, ClusterError(f"no process could be started for the program of {job.run}: {error.strerror}"))
    if pid == 0:
        ours.close()
        run_program.main(job, driver, theirs)
    theirs.close()
    with ours:
        _Supervisor(job, pid, ours, cluster, began).run()


def _fail(job: RunSpec, error: ClusterError) -> NoReturn:
    """Write the event of a run that failed before its program started, and exit."""
    try:
        job.emit("error", error=error.to_json())
    except ClusterError as problem:  # the event cannot be written, so only the log can have the error
        print(error.message, problem.message, sep="\n", file=sys.stderr, flush=True)
    os._exit(1)


class _Supervisor:
    """Supervises the process of a run's program.

    Args:
        job: The run.
        pid: The pid of the program's process, a child of this process.
        link: The driver's end of a socket pair with the program's process.
        cluster: The addresses that may connect to the program's ports, or None if all may.
        began: The time at which the driver started, in seconds of time.monotonic().
    """

    def __init__(
        self,
        job: RunSpec,
        pid: int,
        link: socket.socket,
        cluster: frozenset[IPv4Address | IPv6Address] | None,
        began: float,
    ) -> None:
        self._job = job
        self._folder = job.run_folder
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._link = link
        # A child process that the program has left behind may keep the program's end open, so reading must not block.
        # The socket is non-blocking because recv_fds() ignores its flags, such as MSG_DONTWAIT.
        link.setblocking(False)
        self._cluster = cluster
        self._began = began
        self._guard: ListenGuard | None = None
        self._decoder = Decoder()
        self._end: ProgramEnd | None = None
        # The time by which a program that has sent its ProgramEnd, or that has been sent SIGTERM, must have exited.
        self._deadline: float | None = None
        self._terminated = False

    def run(self) -> NoReturn:
        """Supervise the program until its process has exited, then exit in the same way."""
        wakeup = _wake_on_terminate()
        poll = select.poll()
        for fd in (self._pidfd, self._link.fileno(), wakeup.fileno()):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, events in poll.poll(self._patience()):
                if fd == self._pidfd:
                    self._receive()  # what the program sent before it exited
                    self._conclude()
                elif fd == wakeup.fileno():
                    wakeup.recv(1 << 10)
                    self._terminate()
                elif self._guard is not None and fd == self._guard.fileno():
                    if events & select.POLLIN:
                        self._guard.handle()
                    else:  # all processes with the trap have exited
                        poll.unregister(fd)
                elif not self._receive():  # the program has exited, or a script has closed the socket
                    poll.unregister(self._link)
                elif self._guard is not None:
                    poll.register(self._guard, select.POLLIN)
            self._check()

    def _patience(self) -> float:
        """Return the timeout of the poll in milliseconds, after which the deadline and the folder are checked."""
        seconds = settings.DRIVER_POLL_SECONDS
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - time.monotonic()))
        return 1000 * seconds

    def _terminate(self) -> None:
        """Send SIGTERM to the program and set the deadline for its exit."""
        self._terminated = True
        self._deadline = time.monotonic() + settings.DRIVER_TERMINATE_SECONDS
        send(self._pidfd, signal.SIGTERM)

    def _check(self) -> None:
        """Kill the program if its deadline has passed, or if the run's folder has been deleted.

        Without the folder, no agent could find the result.
        """
        if not self._folder.exists() or (self._deadline is not None and time.monotonic() >= self._deadline):
            send(self._pidfd, signal.SIGKILL)

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
        with contextlib.suppress(OSError):  # such as a full disk
            print(f"tfcluster: this program may not listen: {why}", file=sys.stderr, flush=True)

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
        if code < 0 and self._end is not None:  # killed during shutdown, after all of its own code had run
            code = self._end.exit_code
        if code < 0:
            _end_by_signal(-code)
        # The agent knows why a run was told to end. A script may also exit with 143 by itself, such as on preemption.
        if self._job.traits.is_script and not (self._terminated and code == 128 + signal.SIGTERM):
            try:
                self._job.emit(**self._result(code))
            except ClusterError as problem:
                print(problem.message, file=sys.stderr, flush=True)
                code = code or 1
        os._exit(code)

    def _result(self, code: int) -> Message:
        """Return the final event of a script's run: its result or its error.

        Args:
            code: The exit code of the script.
        """
        end = self._end or ProgramEnd(code, "", time.monotonic() - self._began, {}, [])
        if code:
            name = Path(self._job.sent or self._job.program).name
            if end.failure:
                return {"event": "error", "error": ClusterError(f"{name} failed: {end.failure}").to_json()}
            hint = f"What it printed: `tfcluster logs {self._job.run}`."
            error = ClusterError(f"{name} ended with exit code {code}", hint=hint)
            return {"event": "error", "error": error.to_json()}
        return {
            "event": "result",
            "run": self._job.run,
            "program": self._job.program,
            "state": "succeeded",
            "seconds": round(end.seconds, 6),
            "result": {"exit_code": 0},
            "devices": end.work,
            "notes": [*self._job.notes, *end.notes],
        }


def _wake_on_terminate() -> socket.socket:
    """Install a handler by which SIGTERM makes a socket readable instead of ending this process.

    Returns:
        The socket.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *arguments: None)
    return reading


def _end_by_signal(number: int) -> NoReturn:
    """End this process by a signal, without a core dump, as the program has already written one."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(1)  # reached if the signal's default action does not end a process
