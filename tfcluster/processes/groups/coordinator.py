"""The coordinator of a group: the driver of a launch, which starts the members on all hosts together and ends them so.

It decides when a group has ended, and says which failure came first: the others are usually consequences of that one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfcluster import settings
from tfcluster.core.groups import LAST_LINES, Group, Member, NextStep, next_step, restart_delay, stop_delay
from tfcluster.core.run_events import (
    ErrorEvent,
    LatestMetrics,
    MemberEvent,
    RestartEvent,
    ResultEvent,
    RunEvent,
)
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.network import Address
from tfcluster.os.process_handle import format_exit_status
from tfcluster.processes.groups.driver import NEVER, GroupDriver, LastLines
from tfcluster.processes.groups.link import (
    Exited,
    Measured,
    Observed,
    Ports,
    Report,
    Reserve,
    Start,
    Started,
    Stop,
    StopIdle,
    Unable,
)
from tfcluster.processes.groups.member_states import MemberState
from tfcluster.processes.runs.run_plan import RunPlan

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


def describe_exit(report: Exited) -> str:
    """Describe how a member has failed, after its name."""
    if report.exit_code < 0:
        return f"was terminated by {format_exit_status(-report.exit_code)}{report.failure}"
    return f"failed: {report.failure}" if report.failure else f"ended with exit code {report.exit_code}"


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
    shown = LAST_LINES + "".join(f"\n  {line}" for line in lines) if lines else ""
    text = "\n".join([report.failure, *lines])
    missed = [f"{each.name} had exited with code 0 before: " for each in done if _is_named(each, text)]
    hint = _KERAS_HINT if "PerReplica" in report.failure else report.hint
    error = ClusterError(f"{''.join(missed)}{member.short} on {member.host} {describe_exit(report)}{shown}", hint=hint)
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


class GroupCoordinator(GroupDriver):
    """Coordinates a group from its start to its end."""

    def __init__(self, plan: RunPlan, group: Group, cluster: Collection[Address] | None) -> None:
        super().__init__(plan, group, cluster)
        self._attempt = 0
        self._has_lost_host = False
        self._resume_at = NEVER  # when the group starts again
        self._reset()
        self._connect()

    def _reset(self) -> None:
        """Forget the previous attempt to run the group."""
        self._ports: dict[int, int] = {}
        self._running: dict[int, int] = {}  # the pids of those that run, by rank
        self._exited: set[int] = set()
        self._done: list[Member] = []  # those that have exited with 0
        self._outputs = {member.rank: LastLines() for member in self._members}
        self._failure: Failure | None = None
        self._done_at = self._stop_at = NEVER  # since when the others are to end; when they are told to
        self._is_stopping = self._is_stopping_idle = False
        self._states = {}
        self._metrics = LatestMetrics(member.short for member in self._members)

    @property
    def _members(self) -> tuple[Member, ...]:
        return self._group.members

    def _name_of(self, number: int) -> str:
        return self._members[number].short

    def _on_connected(self) -> None:
        """Have the hosts reserve ports when all have connected."""
        if self._connected == set(self._group.hosts):
            if self._attempt:
                self._ready_by = time.monotonic() + settings.GROUP_START_SECONDS
            self._order(Reserve())

    def _on_lost(self, host: str) -> None:
        problem = f"the connection to host {host} is lost"
        self._fail_hosts([host], problem, ExitCode.UNREACHABLE, may_return=host != self._plan.host)

    def _timers(self) -> Iterable[float]:
        return (self._end_at, self._resume_at, self._ready_by, self._stop_at)

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
            if self._resume_at == NEVER:
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
            ready = self._connected
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
            self._stop_at = NEVER
            self._is_stopping = True
            self._order(Stop(settings.GROUP_STOP_SECONDS))
        if now >= self._resume_at:
            self._resume_at = NEVER
            self._ready_by = now + settings.GROUP_START_SECONDS
            self._attempt += 1
            self._reset()
            if lost := [host for host in self._group.hosts if host not in self._connected]:
                self._ready_by = now + settings.GROUP_RETURN_SECONDS
                self._listen(lost)
            else:
                self._order(Reserve())

    def _take(self, host: str, report: Report) -> None:
        """Take a report of a host."""
        if isinstance(report, Ports):
            self._ports.update(zip((member.rank for member in self._group.on(host)), report.ports, strict=True))
            if len(self._ports) == len(self._members):
                self._ready_by = NEVER
                self._order(Start(self._attempt, self._group.addresses(self._ports)))
        elif isinstance(report, Started):
            member = self._members[report.rank]
            self._running[report.rank] = report.pid
            self._states[member.short] = MemberState(report.pid, member.host)
            self._write_member(member, "started", pid=report.pid)
        elif isinstance(report, Measured):
            self._metrics.add(report.event)
            self._write(report.event)
        elif isinstance(report, Observed):
            member = self._members[report.rank]
            self._note(member.short, observation=report.observation)
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
        self._note(member.short, exit_code=report.exit_code)
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

    def _write_member(self, member: Member, state: str, **fields: int) -> None:
        self._write(MemberEvent(member.short, member.host, state, self._attempt, **fields))

    def _fail_hosts(
        self, hosts: Collection[str], problem: str, exit_code: ExitCode = ExitCode.FAILED, *, may_return: bool = False
    ) -> None:
        """Note that hosts do nothing more for this attempt, whose members there count as exited.

        With `may_return`, a restart waits until they have connected again; otherwise there is none.
        """
        self._has_lost_host = self._has_lost_host or not may_return
        self._ready_by = NEVER
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

    def _final_event(self) -> tuple[int, RunEvent]:
        if self._is_cancelled:
            return int(ExitCode.TERMINATED), self._metrics.stop_event()
        code = 0 if self._failure is None else self._failure.exit_code
        end = (time.monotonic() - self._started_at, self._recorder.lost_bytes)
        return code, final_event(self._plan, self._failure, self._attempt, self._metrics.as_result(), *end)
