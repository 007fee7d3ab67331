"""The process that drives one run: it starts the run's program in a child process and supervises that.

It outlives the agent, and ends with the run. A program in a process of its own can end as an interpreter ends, and the
driver sees to what the program cannot: the ports that it opens, an end that takes too long, the record of how it ended.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, NoReturn

from tfcluster.core.hosts import Host
from tfcluster.core.programs import SCRIPT
from tfcluster.errors import ClusterError
from tfcluster.process_handle import ProcessHandle, send
from tfcluster.processes import daemonize
from tfcluster.processes.netinfo import addresses_of
from tfcluster.processes.port_isolation import ListenGuard
from tfcluster.processes.run_events import RunEventLog
from tfcluster.protocol.codec import Decoder, Message, encode

#: The files of a run's folder.
EVENTS, OUTPUT = "events.jsonl", "output.log"
#: The folder in a run's folder that holds the file that was sent with it.
SENT = "sent"
# The link that says who drives the run.
_CLAIM = "driver"
_WATCH_SECONDS = 5.0
# For destructors and TensorFlow's threads at the end of a program, all of whose own code has run by then.
_FINALIZE_SECONDS = 10.0
# For a program that is told to end; the agent kills a driver that takes longer than 3 s.
_TERMINATE_SECONDS = 2.5


@dataclass(frozen=True)
class RunSpec:
    """What a driver has to do.

    Attributes:
        run: The run's id.
        cluster: The cluster's name.
        program: The bundled program.
        folder: The run's folder, for its events and output.
        addresses: `host:port` of every task, by job.
        head: `host:port` of the task that leads the cluster.
        devices: Full names of the devices to compute on.
        parameters: The program's own parameters.
        notes: What the user should know of the choice of devices; part of the result.
        sent: The name of the file that is sent with the run; None where there is none.
        log_placement: Have the servers print where they place each operation.
        peers: The names and addresses of the hosts that may connect to what the program listens on; None for all.
    """

    run: str
    cluster: str
    program: str
    folder: str
    addresses: dict[str, list[str]]
    head: str
    devices: list[str]
    parameters: dict[str, Any]
    notes: list[str]
    sent: str | None = None
    log_placement: bool = False
    peers: dict[str, str] | None = None

    @property
    def run_folder(self) -> Path:
        """The run's folder."""
        return Path(self.folder)

    @property
    def sent_path(self) -> Path | None:
        """Where the file that is sent with the run is."""
        return None if self.sent is None else self.run_folder / SENT / self.sent

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event of the run.

        Raises:
            ClusterError: It cannot be written.
        """
        path = self.run_folder / EVENTS
        try:
            RunEventLog(path).emit(event, **fields)
        except OSError as problem:
            raise ClusterError(f"{path} cannot be written: {problem.strerror}") from problem
        except ValueError as problem:  # JSON has neither infinities nor NaN
            raise ClusterError(f"the run's event {event!r} has a number that is not finite") from problem


@dataclass(frozen=True)
class ProgramEnd:
    """What a script's process tells its driver when all of its code has run.

    Attributes:
        exit_code: The exit code that it ends with.
        failure: The exception that ended it, in a line; empty where none did.
        seconds: How long it ran.
        work: What each device did, as in `Context.work`.
        notes: What the user should know about how the run went.
    """

    exit_code: int
    failure: str
    seconds: float
    work: dict[str, dict[str, int]]
    notes: list[str]

    def send(self, link: socket.socket) -> None:
        """Tell the driver."""
        link.sendall(encode(asdict(self)))


def acquire_run(folder: Path, process: ProcessHandle | None) -> bool:
    """Settle once and for all who drives a run: one process, or nobody. False when that is settled already.

    A driver claims its run before it does anything, and an agent that finds a run without a driver claims it for
    nobody: so neither a driver that starts late nor one whose agent died between the fork and the record is lost.

    Args:
        folder: The run's folder.
        process: The driver; None for nobody.
    """
    target = f"{process.pid}:{process.start_time}" if process else "nobody"
    try:
        os.symlink(target, folder / _CLAIM)  # made with what it says in one step, as editors lock their files
    except FileExistsError:
        return False
    return True


def driver_of(folder: Path) -> ProcessHandle | None:
    """The process that drives or drove a run; None where nobody does."""
    try:
        pid, _, start_time = os.readlink(folder / _CLAIM).partition(":")
        return ProcessHandle(int(pid), int(start_time))
    except (OSError, ValueError):
        return None


def main(job: RunSpec) -> None:
    """Drive one run. Returns only by the exception that ends the program's process; the driver itself exits.

    It exits as the program does: with its exit code, or by its signal.
    """
    folder = job.run_folder
    daemonize.detach(f"tfcluster: {job.cluster} {job.run}", log=folder / OUTPUT)
    if not acquire_run(folder, ProcessHandle.of(os.getpid())):
        os._exit(1)  # the run ended before it began
    began = time.monotonic()
    try:
        cluster = None if job.peers is None else addresses_of(Host(*each) for each in job.peers.items())
    except OSError as error:
        _fail(job, ClusterError(str(error)))
    driver = os.getpid()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        from tfcluster.processes import run_program

        run_program.main(job, driver, theirs)
    theirs.close()
    with ours:
        _Supervisor(job, pid, ours, cluster, began).run()


def _fail(job: RunSpec, error: ClusterError) -> NoReturn:
    """End a run that has come to nothing."""
    try:
        job.emit("error", error=error.to_json())
    except ClusterError as problem:  # nothing can be told but to who reads the log
        print(error.message, problem.message, sep="\n", file=sys.stderr, flush=True)
    os._exit(1)


class _Supervisor:
    """Watches the process of a program.

    Args:
        job: The run.
        pid: The program's process, a child.
        link: The driver's end of a socket pair with it.
        cluster: The addresses that may connect to its ports; None for all.
        began: When the driver began, in monotonic seconds.
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
        link.setblocking(False)  # a child that the program has left may hold its end; recv_fds() ignores flags
        self._cluster = cluster
        self._began = began
        self._guard: ListenGuard | None = None
        self._decoder = Decoder()
        self._end: ProgramEnd | None = None
        self._deadline: float | None = None  # when a program that has told its end, or is told to end, must have ended
        self._terminated = False

    def run(self) -> NoReturn:
        """Supervise the program until its process has ended, and end the driver as that ended."""
        wakeup = _wake_on_terminate()
        poll = select.poll()
        for fd in (self._pidfd, self._link.fileno(), wakeup.fileno()):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, events in poll.poll(self._patience()):
                if fd == self._pidfd:
                    self._receive()  # what it told before it ended
                    self._conclude()
                elif fd == wakeup.fileno():
                    wakeup.recv(1 << 10)
                    self._terminate()
                elif self._guard is not None and fd == self._guard.fileno():
                    if events & select.POLLIN:
                        self._guard.handle()
                    else:  # no process with the trap is left
                        poll.unregister(fd)
                elif not self._receive():  # the program has ended, or closed what it does not know
                    poll.unregister(self._link)
                elif self._guard is not None:
                    poll.register(self._guard, select.POLLIN)
            self._check()

    def _patience(self) -> float:
        """Return for how many milliseconds nothing has to be done by itself."""
        seconds = _WATCH_SECONDS
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - time.monotonic()))
        return 1000 * seconds

    def _terminate(self) -> None:
        """Tell the program to end."""
        self._terminated = True
        self._deadline = time.monotonic() + _TERMINATE_SECONDS
        send(self._pidfd, signal.SIGTERM)

    def _check(self) -> None:
        """Kill a program whose end takes too long, or whose run's folder is gone: no agent could find its result."""
        if not self._folder.exists() or (self._deadline is not None and time.monotonic() >= self._deadline):
            send(self._pidfd, signal.SIGKILL)

    def _receive(self) -> bool:
        """Take all that the program has sent: first the descriptor of its trap, if it has one, at last its end.

        Returns:
            Whether more may come.
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
                        self._deadline = time.monotonic() + _FINALIZE_SECONDS

    def _report_refused_port(self, why: str) -> None:
        with contextlib.suppress(OSError):  # a full disk
            print(f"tfcluster: this program may not listen: {why}", file=sys.stderr, flush=True)

    def _conclude(self) -> NoReturn:
        """End as the program has ended; of a script, write the event that tells how.

        Of one that was told to end nothing is left; else what it has put into the background goes on, as it would
        without a driver.
        """
        if self._terminated:
            # Before the program is reaped: after that its number may be another group's.
            with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left, or none of ours
                os.killpg(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if code < 0 and self._end is not None:  # all of its own code had run
            code = self._end.exit_code
        if code < 0:
            _end_by_signal(-code)
        if self._job.program == SCRIPT and code != 128 + signal.SIGTERM:
            try:
                self._job.emit(**self._result(code))
            except ClusterError as problem:
                print(problem.message, file=sys.stderr, flush=True)
                code = code or 1
        os._exit(code)

    def _result(self, code: int) -> Message:
        """Return the event that tells how a script ended."""
        end = self._end or ProgramEnd(code, "", time.monotonic() - self._began, {}, [])
        if code:
            name = Path(self._job.sent or SCRIPT).name
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
    """Have SIGTERM make a socket readable instead of ending this process; return the socket."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *arguments: None)
    return reading


def _end_by_signal(number: int) -> NoReturn:
    """End this process by a signal, without a core dump: that of the program is there."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(1)  # a signal that by default ends nothing
