"""The driver of a sweep: it starts a trial wherever a place is free, until all have ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from tfcluster import settings
from tfcluster.core.groups import Group
from tfcluster.core.run_events import ErrorEvent, ProgressEvent, RunEvent, StoppedEvent, is_report, trial_metric
from tfcluster.core.text import pluralize
from tfcluster.core.trials import Trial, TrialQueue, TrialState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.network import Address
from tfcluster.processes.groups.coordinator import describe_exit, describe_failure
from tfcluster.processes.groups.driver import NEVER, GroupDriver, LastLines
from tfcluster.processes.groups.link import Exited, Measured, Report, Started, StartTrial
from tfcluster.processes.groups.member_states import MemberState
from tfcluster.processes.runs.run_plan import RunPlan


class SweepDriver(GroupDriver):
    """Drives a sweep from its start to its end. The members of the group are the places of its trials."""

    def __init__(self, plan: RunPlan, group: Group, cluster: Collection[Address] | None) -> None:
        super().__init__(plan, group, cluster)
        assert plan.options.sweep is not None, "it has trials"
        self._sweep = plan.options.sweep
        self._queue = TrialQueue(self._sweep, group.members)
        self._has_begun = False  # whether all hosts have connected, or had the time for it
        self._first_failure = ""
        self._problem = ""  # why trials were not started
        self._write_progress()
        self._connect()

    def _name_of(self, number: int) -> str:
        return f"trial:{number}"

    def _on_connected(self) -> None:
        self._has_begun |= self._connected == set(self._group.hosts)
        if self._has_begun:
            self._ready_by = NEVER

    def _on_lost(self, host: str) -> None:
        """Have the trials of a host restart, and the command have it connect again."""
        for trial in self._queue.lose(host, time.monotonic()):
            self._report_end(trial, f"the connection to host {host} is lost")
        others = [each for each in self._group.hosts if each not in {*self._connected, self._plan.host}]
        if others:
            self._listen(others)
        if not self._connected:
            self._ready_by = time.monotonic() + (settings.GROUP_RETURN_SECONDS if others else 0)

    def _timers(self) -> Iterable[float]:
        return (self._end_at, self._ready_by)

    def _check_timers(self) -> None:
        """Begin without the hosts that are late, or end the sweep if there is none."""
        if time.monotonic() >= self._ready_by:
            self._ready_by = NEVER
            self._has_begun = True
            if not self._connected:
                self._problem = "no host is left"
                self._queue.stop()

    def _has_ended(self) -> bool:
        """Return whether the sweep has ended; start the trials for which places are free."""
        if self._is_cancelled:
            return not self._queue.running or time.monotonic() >= self._end_at
        if self._is_interrupted:
            self._queue.stop()
        while self._has_begun and (trial := self._queue.start_next(self._connected, time.monotonic())):
            self._start(trial)
        return self._queue.has_ended or not self._plan.folder.exists()

    def _start(self, trial: Trial) -> None:
        assert trial.place is not None, "it has been given one"
        self._outputs[trial.number] = LastLines()
        self._write(trial.to_event())
        order = StartTrial(trial.number, trial.place.rank, trial.attempt)
        self._order(order, trial.place.host)

    def _take(self, host: str, report: Report) -> None:
        """Take a report of a host."""
        if isinstance(report, Started):
            self._states[self._name_of(report.rank)] = MemberState(report.pid, host)
        elif isinstance(report, Measured):
            if is_report(report.event):
                self._queue.trials[report.rank].metrics[trial_metric(report.event)] = report.event["value"]
            self._write(report.event)
        elif isinstance(report, Exited):
            self._take_exit(report)

    def _take_exit(self, report: Exited) -> None:
        self._lines.pass_on(self._name_of(report.rank))
        lines = self._outputs.pop(report.rank).lines
        trial = self._queue.trials[report.rank]
        state, problem = TrialState.SUCCEEDED, None
        if report.exit_code != 0:
            was_ended = self._is_cancelled or self._is_interrupted
            state = TrialState.CANCELLED if was_ended else TrialState.FAILED
            if state is TrialState.FAILED:
                message = describe_failure(trial.member, report, lines, (), interrupted=False).error.message
                self._first_failure = self._first_failure or message
                problem = (report.failure if report.exit_code > 0 else "") or describe_exit(report)
                problem = problem.partition("\n")[0]
        self._report_end(self._queue.end(trial.number, state, time.monotonic()), problem)

    def _report_end(self, trial: Trial, problem: str | None) -> None:
        """Report that a trial has ended, or that it has lost its host."""
        self._states.pop(self._name_of(trial.number), None)
        if trial.state is TrialState.FAILED:
            self._first_failure = self._first_failure or f"{trial.member.name}: {problem}"
        self._write(trial.to_event(problem))
        self._write_progress()

    def _write_progress(self) -> None:
        trials = self._queue.trials
        ended = len(trials) - len(self._queue.in_state(TrialState.PENDING, TrialState.RUNNING))
        seconds = round(time.monotonic() - self._started_at, 3)
        self._write(ProgressEvent(done=ended, total=len(trials), unit="trials", seconds=seconds))

    def _final_event(self) -> tuple[int, RunEvent]:
        has_rest = bool(self._queue.in_state(TrialState.PENDING, TrialState.RUNNING, TrialState.CANCELLED))
        for trial in self._queue.running:  # they did not end in time
            self._queue.end(trial.number, TrialState.CANCELLED, time.monotonic())
        result = {"trials": self._queue.rows()}
        if self._is_cancelled:
            return int(ExitCode.TERMINATED), StoppedEvent(result)
        if self._is_interrupted and has_rest:
            code = ExitCode.INTERRUPTED
            return int(code), ErrorEvent(ClusterError("interrupted", exit_code=code).to_json(), result)
        if self._queue.in_state(TrialState.SUCCEEDED):
            seconds = time.monotonic() - self._started_at
            return 0, self._plan.result_event(result, seconds, devices={}, notes=self._notes())
        reasons = "; ".join(filter(None, (self._problem, self._first_failure)))
        hint = f"The whole output: `tfcluster logs {self._plan.run} -c {self._plan.cluster}`."
        return 1, ErrorEvent(ClusterError(f"no trial has succeeded: {reasons}", hint=hint).to_json(), result)

    def _notes(self) -> list[str]:
        """Return what the user should know of a sweep of which a trial has succeeded."""
        notes = []
        if failed := self._queue.in_state(TrialState.FAILED):
            notes.append(f"{pluralize(len(failed), 'trial')} failed; the first: {self._first_failure}")
        if pending := self._queue.in_state(TrialState.PENDING):
            why = self._problem or f"--max-failures {self._sweep.max_failures}"
            notes.append(f"{pluralize(len(pending), 'trial')} not started: {why}")
        best = self._sweep.best
        if best is not None and not any(best.metric in trial.metrics for trial in self._queue.trials):
            notes.append(f"no trial has reported the metric {best.metric!r}")
        if self._recorder.lost_bytes:
            notes.append(f"{self._recorder.lost_bytes} bytes of output could not be written")
        return notes
