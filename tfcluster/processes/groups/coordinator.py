"""The coordinator of a group: the driver of its run, which starts the members on all hosts together and ends them so.

The hosts connect to it, the one that it runs on included. It decides when a group has ended, records what the members
print, and says which failure came first: the others are usually consequences of that one.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from tfcluster import settings
from tfcluster.core.groups import LAST_LINES, Group, Member, NextStep, next_step, restart_delay, stop_delay
from tfcluster.core.run_events import (
    CoordinatorEvent,
    ErrorEvent,
    LatestMetrics,
    MemberEvent,
    RestartEvent,
    ResultEvent,
    RunEvent,
)
from tfcluster.core.topology import join_address
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os import daemonize
from tfcluster.os.network import Address
from tfcluster.os.process_handle import format_exit_status, is_stopped_by_signal
from tfcluster.processes.groups.host import GroupHost
from tfcluster.processes.groups.link import (
    End,
    Exited,
    GroupLink,
    GroupListener,
    Measured,
    Observed,
    Order,
    Output,
    Ports,
    Report,
    Reserve,
    SignalOrder,
    Start,
    Started,
    Stop,
    StopIdle,
    Unable,
)
from tfcluster.processes.groups.member_states import MemberState, write_states
from tfcluster.processes.runs.code_tree import clear_tree
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.processes.runs.stored_output import OutputRecorder
from tfcluster.processes.runs.streams import STDERR
from tfcluster.processes.runs.supervised_program import (
    HOST_END_SIGNAL,
    TERMINAL_SIGNALS,
    USER_SIGNALS,
    wake_on_signals,
)
from tfcluster.protocol.codec import Message

Source = tuple[str, str]  # the short name of the member's task, and the stream


class LineBuffer:
    """Passes output on (`write(stream, data, task)`) when its line is complete, or after a short time.

    A prompt or a progress bar, which have no newline, thus appear soon.
    """

    def __init__(self, write: Callable[[str, bytes, str], None]) -> None:
        self._write = write
        self._held: dict[Source, tuple[bytes, float]] = {}  # until when to hold it, on the monotonic clock

    def add(self, stream: str, data: bytes, task: str) -> None:
        """Take what has arrived on a stream of a member."""
        source = task, stream
        held, until = self._held.pop(source, (b"", _NEVER))
        data = held + data
        end = len(data) if len(data) > settings.LOG_LINE_MAX_BYTES else data.rfind(b"\n") + 1
        if end:
            self._write(stream, data[:end], task)
        if rest := data[end:]:
            # Of a bar that is drawn again and again, what came first says for how long all of it is held.
            is_new = until == _NEVER or end > 0
            self._held[source] = rest, time.monotonic() + settings.GROUP_LINE_SECONDS if is_new else until

    def seconds_left(self) -> float:
        """Return how long nothing has to be passed on; infinity if nothing is held."""
        return max(0.0, min((until for _, until in self._held.values()), default=_NEVER) - time.monotonic())

    def pass_on(self, task: str | None = None) -> None:
        """Pass on what was held for long enough, and all of a member that has exited."""
        now = time.monotonic()
        for source, (data, until) in list(self._held.items()):
            if now >= until or source[0] == task:
                del self._held[source]
                self._write(source[1], data, source[0])

    def close(self) -> None:
        """Pass on all that is held."""
        for task, _ in list(self._held):
            self.pass_on(task)


# Keras 3 passes to TensorFlow what a strategy has distributed, which ends with a ValueError that names neither.
_KERAS_HINT = "Keras 3 has no `fit` for several workers: `pip install tf_keras`, and set TF_USE_LEGACY_KERAS=1."


@dataclass(frozen=True)
class Failure:
    """The first failure of a group."""

    error: ClusterError
    exit_code: int  # as a shell would report it
    result: dict[str, Any]  # the task and host that failed, with the signal if one ended it; empty if no member failed
    is_cause: bool = False  # of what members fail of: a host that is lost, or a member that is frozen
    text: str = ""  # what the member that failed printed last

    def names(self, member: Member) -> bool:
        """Return whether the error names a member, which may be its cause: TensorFlow says whom it has lost."""
        return not self.is_cause and _is_named(member, self.text)

    def caused_by(self, cause: Failure) -> Failure:
        """Return the failure that was the cause of this one, which comes after it in one line."""
        after = self.error.message.partition("\n")[0]
        error = ClusterError(f"{cause.error.message}\nafter that, {after}", exit_code=cause.error.exit_code)
        return replace(cause, error=error)


def describe_frozen(member: Member, pid: int) -> Failure:
    """Describe the failure of a group one of whose members is frozen: the others have lost it."""
    result = {"exit_code": int(ExitCode.FAILED), "task": member.short, "host": member.host}
    return Failure(ClusterError(member.describe_frozen(pid)), ExitCode.FAILED, result, is_cause=True)


class LastLines:
    """Keeps the last lines of a member's output."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=settings.GROUP_FAILURE_LINES)
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Add what the member has printed."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-settings.RUN_OUTPUT_LINE_MAX_BYTES :]
        self.lines.extend(line.decode(errors="replace").rstrip() for line in lines if line.strip())


def describe_failure(
    member: Member, report: Exited, lines: Sequence[str], done: Iterable[Member], interrupted: bool
) -> Failure:
    """Describe the failure of a member.

    `done` are the members that had exited with 0 before. One of them is the cause if TensorFlow names it.
    """
    code = report.exit_code if report.exit_code > 0 else 128 - report.exit_code
    result: dict[str, Any] = {"exit_code": code, "task": member.short, "host": member.host}
    if interrupted and code == ExitCode.INTERRUPTED:
        return Failure(ClusterError("interrupted", exit_code=ExitCode.INTERRUPTED), code, result)
    if report.exit_code < 0:
        result["signal"] = format_exit_status(-report.exit_code)
        problem = f"was terminated by {result['signal']}{report.failure}"
    elif report.failure:
        problem = f"failed: {report.failure}"
    else:
        problem = f"ended with exit code {code}"
    shown = LAST_LINES + "".join(f"\n  {line}" for line in lines) if lines else ""
    text = "\n".join([report.failure, *lines])
    missed = [f"{each.name} had exited with code 0 before: " for each in done if _is_named(each, text)]
    hint = _KERAS_HINT if "PerReplica" in report.failure else report.hint
    error = ClusterError(f"{''.join(missed)}{member.short} on {member.host} {problem}{shown}", hint=hint)
    return Failure(error, code, result, text=text)


def _is_named(member: Member, text: str) -> bool:
    return re.search(rf"/job:{re.escape(member.job)}/(?:replica:0/)?task:{member.index}(?!\d)", text) is not None


def final_event(
    plan: RunPlan, failure: Failure | None, restarts: int, metrics: Mapping[str, Any], seconds: float, lost_bytes: int
) -> ResultEvent | ErrorEvent:
    """Return the final event of a group's run.

    `metrics` is the field of the result that has the members' metrics, if they have reported any. `lost_bytes` is how
    much of the output could not be written.
    """
    if failure is not None:
        hint = failure.error.hint or f"The whole output: `tfcluster logs {plan.run} -c {plan.cluster}`."
        error = ClusterError(failure.error.message, hint=hint, exit_code=failure.error.exit_code)
        result = {**failure.result, "restarts": restarts} if failure.result else {}
        return ErrorEvent(error.to_json(), {**result, **metrics} or None)
    notes = [f"{lost_bytes} bytes of output could not be written"] if lost_bytes else []
    return plan.result_event({"exit_code": 0, "restarts": restarts, **metrics}, seconds, devices={}, notes=notes)


_NEVER = float("inf")
# The signals that members get as they are; they have no terminal whose size could change.
_PASSED_SIGNALS = ({*TERMINAL_SIGNALS} | {*USER_SIGNALS}) - {signal.SIGWINCH}


class GroupCoordinator:
    """Coordinates a group from its start to its end.

    `cluster` has the addresses that may connect to this process; None if all may.
    """

    def __init__(self, plan: RunPlan, group: Group, cluster: Collection[Address] | None) -> None:
        self._plan = plan
        self._group = group
        self._cluster = cluster
        self._recorder = OutputRecorder(plan.folder, plan.output_limit)
        self._lines = LineBuffer(self._recorder.append)
        self._states: dict[str, MemberState] = {}  # by the short names of the members' tasks
        self._written_states: dict[str, MemberState] = {}
        self._poll = select.poll()
        self._links: dict[int, GroupLink] = {}
        self._listener: GroupListener | None = None
        self._started_at = time.monotonic()
        self._attempt = 0
        self._local_host: int | None = None
        self._is_interrupted = self._is_cancelled = self._has_lost_host = False
        self._reset()
        # When the group ends, whatever has exited; when the hosts must be ready; when the group starts again.
        self._end_at = self._resume_at = _NEVER
        self._ready_by = self._started_at + settings.GROUP_START_SECONDS
        if group.on(plan.host):
            self._fork_local_host()
        self._wakeup = wake_on_signals()
        self._poll.register(self._wakeup, select.POLLIN)
        if others := [host for host in group.hosts if host != plan.host]:
            self._listen(others)

    def _reset(self) -> None:
        """Forget the previous attempt to run the group."""
        self._ports: dict[int, int] = {}
        self._running: dict[int, int] = {}  # the pids of those that run, by rank
        self._exited: set[int] = set()
        self._done: list[Member] = []  # those that have exited with 0
        self._outputs = {member.rank: LastLines() for member in self._members}
        self._failure: Failure | None = None
        self._done_at = self._stop_at = _NEVER  # since when the others are to end; when they are told to
        self._is_stopping = self._is_stopping_idle = False
        self._states = {}
        self._metrics = LatestMetrics(member.short for member in self._members)

    @property
    def _members(self) -> tuple[Member, ...]:
        return self._group.members

    def _fork_local_host(self) -> None:
        """Fork the process that starts the members on this host."""
        own, other = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            own.detach()
            daemonize.set_parent_death_signal(parent)
            daemonize.become_subreaper()  # that of this process, the driver, is not inherited
            daemonize.close_fds({0, 1, 2, other.fileno()})
            daemonize.set_process_title(f"tfcluster: {self._plan.cluster} {self._plan.run} host")
            try:
                link = GroupLink(other, self._plan.host)
                os._exit(GroupHost(self._plan, self._group, link, self._cluster).run())
            except SystemExit:
                raise
            except BaseException:  # the coordinator notices that the connection is closed
                traceback.print_exc()
                os._exit(1)
        other.close()
        self._local_host = pid
        self._admit(GroupLink(own, self._plan.host))

    def _listen(self, others: list[str]) -> None:
        """Listen for other hosts, and tell the command the address, which it passes on to them."""
        if self._listener is not None:
            self._listener.close()
        self._listener = GroupListener(self._group.secret, others, self._cluster, self._poll, self._plan.ports)
        address = join_address(self._group.address_host, self._listener.port)
        self._plan.write(CoordinatorEvent(address, others))

    def _admit(self, link: GroupLink) -> None:
        self._links[link.fileno()] = link
        self._poll.register(link, select.POLLIN)
        if {each.host for each in self._links.values()} == set(self._group.hosts):
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            if self._attempt:
                self._ready_by = time.monotonic() + settings.GROUP_START_SECONDS
            self._order(Reserve())

    def _order(self, order: Order) -> None:
        """Send an order to all hosts; a host that is lost is noticed when its reports are read."""
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.send(order)

    def run(self) -> NoReturn:
        """Coordinate the group to its end, write the final event of the run, and exit."""
        while not self._has_ended():
            timers = (self._end_at, self._resume_at, self._ready_by, self._stop_at)
            seconds = max(0.0, min(timers) - time.monotonic())
            timeout = min(settings.DRIVER_POLL_SECONDS, seconds, self._lines.seconds_left())
            for fd, _ in self._poll.poll(1000 * timeout):
                self._handle(fd)
            self._lines.pass_on()
            if self._states != self._written_states:
                self._written_states = dict(self._states)
                write_states(self._plan.folder, self._states)
            self._continue_local_host()
            self._check_timers()
        self._finish()

    def _continue_local_host(self) -> None:
        """Continue the process that starts the members on this host if a signal has stopped it."""
        if self._local_host is not None and is_stopped_by_signal(self._local_host):
            os.kill(self._local_host, signal.SIGCONT)  # it has not been reaped, so the pid is its own

    def _has_ended(self) -> bool:
        """Return whether the group has ended; stop the remaining members, or start all again, if it is time to."""
        step = next_step(self._members, self._exited, self._failure is not None)
        if self._is_cancelled:
            return not self._running or time.monotonic() >= self._end_at
        if step is NextStep.STOP_IDLE and not self._is_stopping_idle:
            self._is_stopping_idle = True
            self._order(StopIdle(settings.GROUP_WORKERS_SECONDS))
        if step is NextStep.STOP_OTHERS and not self._is_stopping:
            code = None if self._failure is None else self._failure.exit_code
            self._done_at = min(self._done_at, time.monotonic())
            delay = stop_delay(self._members, self._exited, code)
            if self._awaits_cause():
                delay = max(delay, settings.GROUP_CAUSE_SECONDS)
            self._stop_at = self._done_at + delay
        if step is NextStep.FAIL and self._can_restart():
            if self._resume_at == _NEVER:
                assert self._failure is not None, "the group has failed"
                delay = restart_delay(self._attempt, self._failure.exit_code)
                self._resume_at = time.monotonic() + delay
                remaining = self._plan.options.max_restarts - self._attempt
                self._write(RestartEvent(self._failure.error.message, delay, remaining - 1))
            return False
        return step in (NextStep.SUCCEED, NextStep.FAIL) or not self._plan.folder.exists()

    def _awaits_cause(self) -> bool:
        """Return whether a member that still runs may be the cause of the failure: one that fails exits slowly."""
        running = (self._members[rank] for rank in self._running)
        return self._failure is not None and any(map(self._failure.names, running))

    def _can_restart(self) -> bool:
        has_to_end = self._is_interrupted or self._has_lost_host
        return self._attempt < self._plan.options.max_restarts and not has_to_end

    def _check_timers(self) -> None:
        now = time.monotonic()
        if now >= self._ready_by:
            ready = {link.host for link in self._links.values()}
            if self._listener is None:  # all have connected
                ready = {member.host for member in self._members if member.rank in self._ports}
            late = [host for host in self._group.hosts if host not in ready]
            hosts = f"host {late[0]}" if len(late) == 1 else f"hosts {', '.join(late)}"
            if self._attempt and self._listener is not None:
                problem = f"{hosts} could not be reached again within {settings.GROUP_RETURN_SECONDS:g} s"
                self._fail_hosts(late, problem, ExitCode.UNREACHABLE)
            else:
                were = "was" if len(late) == 1 else "were"
                self._fail_hosts(late, f"{hosts} {were} not ready within {settings.GROUP_START_SECONDS:g} s")
        if now >= self._stop_at:
            self._stop_at = _NEVER
            self._is_stopping = True
            self._order(Stop(settings.GROUP_STOP_SECONDS))
        if now >= self._resume_at:
            self._resume_at = _NEVER
            self._ready_by = now + settings.GROUP_START_SECONDS
            self._attempt += 1
            self._reset()
            ready = {link.host for link in self._links.values()}
            if lost := [host for host in self._group.hosts if host not in ready]:
                self._ready_by = now + settings.GROUP_RETURN_SECONDS
                self._listen(lost)
            else:
                self._order(Reserve())

    def _handle(self, fd: int) -> None:
        if fd == self._wakeup.fileno():
            self._handle_signals(self._wakeup.recv(1 << 10))
        elif fd in self._links:
            self._read_reports(fd)
        elif self._listener is not None and (link := self._listener.handle(fd)) is not None:
            self._admit(link)

    def _handle_signals(self, numbers: bytes) -> None:
        self._is_interrupted |= signal.SIGINT in numbers
        for number in filter(_PASSED_SIGNALS.__contains__, numbers):
            self._order(SignalOrder(number))
        if signal.SIGTERM in numbers:
            self._stop_all(settings.DRIVER_TERMINATE_SECONDS)
        elif HOST_END_SIGNAL in numbers and not self._is_cancelled:  # it may arrive more than once
            self._stop_all(settings.JOB_END_SECONDS)

    def _stop_all(self, seconds: float) -> None:
        self._is_cancelled = True
        self._end_at = time.monotonic() + seconds
        self._order(Stop(seconds))

    def _read_reports(self, fd: int) -> None:
        link = self._links[fd]
        try:
            reports: list[Report] | None = link.receive()
        except ClusterError:
            reports = None
        if reports is None:
            self._poll.unregister(fd)
            del self._links[fd]
            link.close()
            problem = f"the connection to host {link.host} is lost"
            self._fail_hosts([link.host], problem, ExitCode.UNREACHABLE, may_return=link.host != self._plan.host)
            return
        for report in reports:
            self._take(link.host, report)

    def _take(self, host: str, report: Report) -> None:
        """Take a report of a host."""
        if isinstance(report, Ports):
            self._ports.update(zip((member.rank for member in self._group.on(host)), report.ports, strict=True))
            if len(self._ports) == len(self._members):
                self._ready_by = _NEVER
                self._order(Start(self._attempt, self._group.addresses(self._ports)))
        elif isinstance(report, Started):
            member = self._members[report.rank]
            self._running[report.rank] = report.pid
            self._states[member.short] = MemberState(report.pid)
            self._write_member(member, "started", pid=report.pid)
        elif isinstance(report, Output):
            data = report.data.encode(errors="surrogateescape")
            self._outputs[report.rank].add(data)
            self._lines.add(report.stream, data, self._members[report.rank].short)
        elif isinstance(report, Measured):
            self._metrics.add(report.event)
            self._write(report.event)
        elif isinstance(report, Observed):
            member = self._members[report.rank]
            self._note(member, observation=report.observation)
            if report.observation.is_frozen and self._is_stopping and member.rank in self._running:
                self._blame(describe_frozen(member, self._running[member.rank]))
        elif isinstance(report, Exited):
            self._take_exit(self._members[report.rank], report)
        elif isinstance(report, Unable):
            self._fail_hosts([host], report.problem)

    def _take_exit(self, member: Member, report: Exited) -> None:
        self._lines.pass_on(member.short)
        self._running.pop(member.rank, None)
        self._exited.add(member.rank)
        self._note(member, exit_code=report.exit_code)
        self._write_member(member, "exited", exit_code=report.exit_code)
        has_failed = report.exit_code != 0 and not report.was_idle
        if has_failed and not (self._is_stopping or self._is_cancelled):
            lines = self._outputs[member.rank].lines
            failure = describe_failure(member, report, lines, self._done, self._is_interrupted)
            if self._failure is None:
                self._failure = failure
            elif self._failure.names(member) and not self._is_interrupted:
                self._failure = self._failure.caused_by(failure)
        elif report.exit_code == 0:
            self._done.append(member)

    def _note(self, member: Member, **fields: Any) -> None:
        """Note what is new of a member, unless the report is of a previous attempt."""
        if member.short in self._states:
            self._states[member.short] = replace(self._states[member.short], **fields)

    def _write(self, event: RunEvent | Message) -> None:
        """Write an event; a full disk must not end the group, and at its end the agent notices it too."""
        with contextlib.suppress(ClusterError):
            self._plan.write(event)

    def _write_member(self, member: Member, state: str, **fields: int) -> None:
        self._write(MemberEvent(member.short, member.host, state, self._attempt, **fields))

    def _fail_hosts(
        self, hosts: Collection[str], problem: str, exit_code: ExitCode = ExitCode.FAILED, *, may_return: bool = False
    ) -> None:
        """Note that hosts do nothing more for this attempt, whose members there count as exited.

        With `may_return`, a restart waits until they have connected again; otherwise there is none.
        """
        self._has_lost_host = self._has_lost_host or not may_return
        self._ready_by = _NEVER
        self._blame(Failure(ClusterError(problem, exit_code=exit_code), int(exit_code), {}, is_cause=True))
        has_started = len(self._ports) == len(self._members)  # or has been ordered to, so that members may still start
        for member in self._members:
            if member.host in hosts or not has_started:
                self._running.pop(member.rank, None)
                self._exited.add(member.rank)

    def _blame(self, cause: Failure) -> None:
        """Note a cause that is known here: members that could not go on without it have often failed before."""
        if self._failure is None and not (self._is_stopping or self._is_cancelled):
            self._failure = cause
        elif self._failure is not None and not (self._failure.is_cause or self._is_interrupted):
            self._failure = self._failure.caused_by(cause)

    def _finish(self) -> NoReturn:
        """Write the final event, let the hosts exit, and exit."""
        self._lines.close()
        code = 0 if self._failure is None else self._failure.exit_code
        end = (time.monotonic() - self._started_at, self._recorder.lost_bytes)
        event: RunEvent = final_event(self._plan, self._failure, self._attempt, self._metrics.as_result(), *end)
        if self._is_cancelled:
            code, event = int(ExitCode.TERMINATED), self._metrics.stop_event()
        self._order(End(code))
        if warning := clear_tree(self._plan):
            self._recorder.append(STDERR, f"{warning}\n".encode())
        self._write(event)
        os._exit(code)
