"""A program's process as its driver supervises it: its output, the ports that it opens, its metrics, its end.

What the driver of a run does is the same for each process that starts programs, such as a host of a group: it reaps
orphans and wakes on signals.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NoReturn

from tfcluster import settings
from tfcluster.core.caller import OutputStreams
from tfcluster.core.run_events import InterruptEvent, MetricEvent, to_record
from tfcluster.errors import ClusterError, ExitCode, TerminatedError
from tfcluster.os import daemonize, libc, procfs
from tfcluster.os.network import Address
from tfcluster.os.process_handle import send_signal
from tfcluster.os.procfs import OomDetector
from tfcluster.process_mark import NO_MARK, set_mark
from tfcluster.processes.runs.program_process import (
    enable_stack_dump,
    flush_output,
    handle_signals,
    title_of,
)
from tfcluster.processes.runs.run_plan import INTERRUPT_HANDLED, ProgramEnd, RunPlan
from tfcluster.processes.runs.run_script import start_program
from tfcluster.processes.runs.streams import STDERR, OutputCapture, OutputSink, connect_streams
from tfcluster.processes.servers.port_isolation import ListenGuard, PortIsolationError, trap_listen
from tfcluster.protocol.codec import Message, decode_line, encode
from tfcluster.protocol.serialization import DecodeError, decode

_NEVER = float("inf")


class SupervisedProgram:
    """The process of a run's program, a child of this process, which waits for its events with `poll`.

    Args:
        poll: Watches the descriptors of this object, whose events are passed to `handle`.
        stdin: The program's standard input; None for /dev/null.
        cluster: The addresses that may connect to the program's ports, or None if all may.
        report: Gets the events of the program: what it reports with `tfcluster.metric`.
        release: Gives up, in the new process, the objects that own descriptors, because these are closed there: an
            object that is destroyed later would close a file of the program that has got its number.
    """

    def __init__(
        self,
        plan: RunPlan,
        poll: select.poll,
        sink: OutputSink,
        stdin: int | None,
        cluster: Collection[Address] | None,
        report: Callable[[Message], None],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._poll = poll
        self._cluster = cluster
        self._sink = sink
        self._report = report
        self._task = None if plan.member is None else plan.member["TFCLUSTER_TASK"]
        # What the program has sent before it exited; None if it did not get so far.
        self.end: ProgramEnd | None = None
        self.is_terminated = False  # whether it was sent SIGTERM
        self._is_killed = False  # whether it was sent SIGKILL
        self.oom_note = ""  # text to append to the signal that has ended it, if the OOM killer may have sent it
        self.capture = OutputCapture(sink, plan.streams or OutputStreams(is_shared=True))
        self._link, program_link = socket.socketpair()
        driver = os.getpid()
        self.pid = self._fork(program_link)
        if self.pid == 0:
            self._link.detach()
            release()
            streams = {*self.capture.program_fds, *([] if stdin is None else [stdin])}
            daemonize.close_fds({0, 1, 2, program_link.fileno(), *streams})
            gc.enable()
            _execute(plan, driver, program_link, self.capture.program_fds, stdin)
        program_link.close()
        self.capture.close_program_fds()
        with contextlib.suppress(OSError):  # the program does this too, but may not have come so far when signalled
            os.setpgid(self.pid, self.pid)
        # A child process that the program has left behind may keep the program's end open, so reading must not block.
        # The socket is non-blocking because recv_fds() ignores its flags, such as MSG_DONTWAIT.
        self._link.setblocking(False)
        self._pidfd = libc.pidfd_open(self.pid)
        self._memory = OomDetector(self.pid, time.monotonic())
        self._guard: ListenGuard | None = None
        self._refusals: set[str] = set()  # what was reported of ports that could not be restricted
        self._unread = b""  # the beginning of a message
        self._is_linked = True  # whether the program can still send messages
        self.has_exited = False  # whether the process has exited, and `reap` may be called
        # The time by which a program that has sent its ProgramEnd, or that has been sent SIGTERM, must have exited.
        self._deadline = _NEVER
        self._handle_by = _NEVER  # by when Python must have handled an interrupt
        self._is_late = False  # whether it has not, which was reported
        self._watch()

    def _watch(self) -> None:
        for fd in (*self.capture.streams, self._pidfd, self._link.fileno()):
            self._poll.register(fd, select.POLLIN)

    def _fork(self, program_link: socket.socket) -> int:
        """Fork the process; in the program, signals are blocked until it can receive them, and no garbage is collected.

        An object that owns a descriptor of this process could otherwise close the program's file of the same number.
        """
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED_SIGNALS)
        gc.disable()
        pid = -1
        try:
            pid = os.fork()
        except OSError:
            program_link.close()
            self._link.close()
            for fd in {*self.capture.streams, *self.capture.program_fds}:
                os.close(fd)
            raise
        finally:
            if pid:  # not in the program's process
                gc.enable()
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def handle(self, fd: int, events: int) -> bool:
        """Handle the events of a descriptor; return whether it is one of this program."""
        if fd in self.capture.streams:
            if not self.capture.read(fd) and fd not in self.capture.streams:
                self._poll.unregister(fd)
        elif fd == self._pidfd:
            self._receive()  # what the program sent before it exited
            self.has_exited = True
            self._poll.unregister(fd)
        elif self._guard is not None and fd == self._guard.fileno():
            if events & select.POLLIN:
                self._guard.handle()
            else:  # all processes with the trap have exited
                self._poll.unregister(fd)
        elif fd == self._link.fileno():
            had_guard = self._guard is not None
            if not self._receive():  # the program has exited, or a script has closed the socket
                self._is_linked, self._handle_by = False, _NEVER
                self._poll.unregister(fd)
            if self._guard is not None and not had_guard:
                self._poll.register(self._guard, select.POLLIN)
        else:
            return False
        return True

    def seconds_left(self) -> float:
        """Return the seconds until `check_time` has something to do; infinite if it has not."""
        return max(0.0, min(self._deadline, self._handle_by) - time.monotonic())

    def check_time(self) -> None:
        """Kill a program that was to exit by now, and report an interrupt that Python was to handle by now."""
        now = time.monotonic()
        self._memory.sample(now)
        if now >= self._deadline:
            self.kill()
        if now >= self._handle_by:
            self._handle_by = _NEVER
            if _handles(self.pid, signal.SIGINT):
                self._is_late = True
                self._report(to_record(InterruptEvent(is_handled=False, task=self._task)))

    def pass_on(self, number: int) -> None:
        """Pass a signal on: those of users to the program's own process, those of a terminal to its process group.

        It is reported if Python does not handle SIGINT soon.
        """
        if number in USER_SIGNALS:
            send_signal(self._pidfd, number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        if number == signal.SIGINT and self._is_linked and self.end is None:
            self._handle_by = min(self._handle_by, time.monotonic() + settings.INTERRUPT_HANDLED_SECONDS)

    def terminate(self, seconds: float) -> None:
        """Send SIGTERM to the program, which is killed unless it exits within `seconds`."""
        self.is_terminated = True
        self._deadline = time.monotonic() + seconds
        send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the program."""
        self._is_killed = True
        send_signal(self._pidfd, signal.SIGKILL)

    def reap(self) -> int:
        """Reap the program, which has exited, and read the rest of its output.

        If it was terminated, its remaining child processes are killed. Otherwise its background processes continue, as
        they would without a driver.

        Return its exit code; negative if a signal has ended it.
        """
        if self.is_terminated:
            # Do this before the program is reaped, after which its pid may be reused for another process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left, or none of this user's
                os.killpg(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.capture.drain()
        if code == -signal.SIGKILL and not (self._is_killed or self.is_terminated):
            self.oom_note = self._memory.describe()
        if code < 0 and self.end is not None:  # killed during shutdown, after all of its own code had run
            return self.end.exit_code
        return code

    def was_stopped(self, code: int) -> bool:
        """Return whether the program has ended because it was terminated.

        A script may also exit with 143 by itself, such as on preemption.

        `code` is the result of `reap`.
        """
        return self.is_terminated and (code < 0 or code == ExitCode.TERMINATED)

    def close(self) -> None:
        """Close the descriptors of a program that was reaped; background processes that it has left are ignored."""
        fds = [*self.capture.streams, self._pidfd, self._link.detach()]
        if self._guard is not None:
            fds.append(self._guard.fileno())
        for fd in fds:
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)
            os.close(fd)

    def close_guard(self) -> None:
        """Close the trap, if there is one: processes that the program has left cannot listen, instead of waiting."""
        if self._guard is not None:
            os.close(self._guard.fileno())

    def detach(self) -> None:
        """Give up the descriptors in a forked process, which has closed them."""
        self._link.detach()

    def _receive(self) -> bool:
        """Handle what the program has sent: first the descriptor of its trap, if it has one, last its ProgramEnd.

        Between them is what a script reports. It may write anything to a descriptor that it has not opened: what is no
        message is ignored.

        Return False if the program's end of the socket pair has been closed, so that nothing more can arrive.
        """
        for _ in range(settings.DRIVER_DRAIN_BLOCKS):
            try:
                data, fds, _, _ = socket.recv_fds(self._link, settings.IO_BLOCK_BYTES, 1)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not data:
                return False
            for fd in fds:
                if self._cluster is None or self._guard is not None:
                    os.close(fd)
                else:
                    self._guard = ListenGuard(fd, self._cluster, self._report_refused_port)
            *lines, rest = (self._unread + data).split(b"\n")
            self._unread = rest if len(rest) <= settings.PROGRAM_MESSAGE_MAX_BYTES else b""
            for line in lines:
                with contextlib.suppress(ClusterError, DecodeError):
                    self._take(decode_line(line))
        return True

    def _take(self, message: Message) -> None:
        """Handle a message of the program."""
        if message == INTERRUPT_HANDLED:
            self._handle_by = _NEVER
            if self._is_late:
                self._is_late = False
                self._report(to_record(InterruptEvent(is_handled=True, task=self._task)))
        elif message.get("event") == MetricEvent.event:
            metric = decode(MetricEvent, message, lenient=True)
            self._report(to_record(replace(metric, task=self._task)))
        elif isinstance(note := message.get("note"), str):
            self._sink.append(STDERR, f"note: {note}\n".encode())
        else:
            self.end = decode(ProgramEnd, message)
            self._handle_by = _NEVER
            if not self.is_terminated:
                self._deadline = time.monotonic() + settings.DRIVER_EXIT_SECONDS

    def _report_refused_port(self, why: PortIsolationError) -> None:
        line = f"tfcluster: this program is not allowed to listen: {why}\n"
        if line not in self._refusals:  # servers try again with another address family or port
            self._refusals.add(line)
            self._sink.append(STDERR, line.encode())


def _handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, which its main thread does not block."""
    status = procfs.read_status(pid)
    caught, blocked = (int(status.get(name, "0"), 16) for name in ("SigCgt", "SigBlk"))
    return bool((caught & ~blocked) >> (number - 1) & 1)


def _execute(plan: RunPlan, driver: int, link: socket.socket, outputs: tuple[int, int], stdin: int | None) -> NoReturn:
    """Execute the program of a run in its process, and end the process.

    `driver` is the pid of the driver, which is the parent process. `outputs` are the program's standard output and
    standard error. `stdin` is None for /dev/null. Raises ScriptStart: the program is a script.
    """
    code = 1
    try:
        daemonize.set_parent_death_signal(driver)
        os.setpgid(0, 0)  # so that the driver can signal the program's children too
        daemonize.set_process_title(title_of(plan))
        # Processes that the program starts and leaves behind do not belong to the cluster, which must not end them.
        set_mark(NO_MARK)
        connect_streams(stdin, outputs)
        handle_signals()
        enable_stack_dump(plan.folder)
        if plan.peers is not None:
            _hand_over_trap(link)
        start_program(plan, link)
    except TerminatedError:
        code = ExitCode.TERMINATED
    except ClusterError as error:
        ProgramEnd(code, error.message, 0.0, {}, [], error=error.to_json(), hint=error.hint).send(link)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
    flush_output()
    os._exit(code)


def _hand_over_trap(link: socket.socket) -> None:
    """Trap listen() and send the trap to the driver, which restricts the ports of this process and of its children.

    The guard is the driver rather than a thread of this process, because listen() may be called by code that holds the
    global interpreter lock (GIL).
    """
    trap = trap_listen()
    socket.send_fds(link, [encode({})], [trap])
    os.close(trap)


#: What a terminal or a shell sends to all processes of the foreground process group.
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
#: What a user sends to one process.
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
#: A driver that gets this signal ends its program as with SIGTERM, with the time that the job of Slurm or the pod has.
HOST_END_SIGNAL = signal.Signals(settings.HOST_END_SIGNAL)

#: What drivers and programs block while they start.
DEFERRED_SIGNALS = (signal.SIGINT, HOST_END_SIGNAL)


def reap_orphans(programs: Collection[int]) -> None:
    """Reap the daemons of programs that have exited, since this process is their parent; not the programs."""
    while True:
        try:
            exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there is none
            return
        if exited is None or exited.si_pid in programs:
            return
        os.waitpid(exited.si_pid, 0)


def wake_on_signals() -> socket.socket:
    """Install handlers by which signals make a socket readable, and neither end nor stop this process.

    Return the socket, from which the numbers of the signals are read.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    for number in (*TERMINAL_SIGNALS, *USER_SIGNALS, HOST_END_SIGNAL, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *arguments: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEFERRED_SIGNALS)
    return reading


def restore_signals() -> None:
    """Undo `wake_on_signals` in a forked process, in which a program is to find the signals as they are by default."""
    signal.set_wakeup_fd(-1)
    for number in (*TERMINAL_SIGNALS, *USER_SIGNALS, HOST_END_SIGNAL, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def end_like(code: int) -> NoReturn:
    """End this process with an exit code or, if it is negative, by that signal.

    There is no core dump, as the program has already written one.
    """
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)  # reached with a signal whose default action does not end a process
