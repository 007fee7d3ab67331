"""The trials of a sweep: where each of them runs, what becomes of it, and which is the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tfcluster import settings
from tfcluster.core.groups import Member, select_members
from tfcluster.core.run_events import TrialEvent
from tfcluster.core.runs import RunOptions, Sweep
from tfcluster.core.sweep_grid import to_value
from tfcluster.core.topology import PS_JOB, ClusterTopology


class TrialState(StrEnum):
    """The state of a trial."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_LAST = (TrialState.SUCCEEDED, TrialState.RUNNING, TrialState.PENDING, TrialState.CANCELLED, TrialState.FAILED)


@dataclass
class Trial:
    """A trial, and its latest attempt."""

    number: int
    parameters: dict[str, Any]
    state: TrialState = TrialState.PENDING
    place: Member | None = None  # where it runs, or ran last
    attempt: int = -1
    started_at: float = 0.0
    seconds: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)  # its latest ones, by name

    @property
    def member(self) -> Member:
        """Return it as the only member of a group at its place."""
        assert self.place is not None, "it has been started"
        return as_member(self.place, self.number)

    def to_event(self, problem: str | None = None) -> TrialEvent:
        """Return the event about its state."""
        return TrialEvent(**self.to_row(), attempt=self.attempt, problem=problem)

    def to_row(self) -> dict[str, Any]:
        """Return what the result of the sweep says of it."""
        return {
            "trial": self.number,
            "parameters": self.parameters,
            "state": self.state.value,
            "metrics": dict(self.metrics),
            "host": None if self.place is None else self.place.host,
            "seconds": None if self.place is None else round(self.seconds, 3),
        }


class TrialQueue:
    """The trials of a sweep, each at one of the places when one is free.

    Times are seconds of a clock that the caller reads.
    """

    def __init__(self, sweep: Sweep, places: Sequence[Member]) -> None:
        self._sweep = sweep
        self._places = places
        self._is_stopped = False
        self.trials = [
            Trial(number, {name: to_value(text) for name, text in values.items()})
            for number, values in enumerate(sweep.trials)
        ]

    @property
    def running(self) -> list[Trial]:
        """Return the trials that run."""
        return self.in_state(TrialState.RUNNING)

    def in_state(self, *states: TrialState) -> list[Trial]:
        """Return the trials in some states."""
        return [trial for trial in self.trials if trial.state in states]

    @property
    def is_stopped(self) -> bool:
        """Whether no other trial starts."""
        limit = self._sweep.max_failures
        return self._is_stopped or (limit is not None and len(self.in_state(TrialState.FAILED)) > limit)

    @property
    def has_ended(self) -> bool:
        """Whether no trial runs, and none will."""
        return not self.running and (self.is_stopped or not self.in_state(TrialState.PENDING))

    def stop(self) -> None:
        """Start no other trial."""
        self._is_stopped = True

    def start_next(self, hosts: Collection[str], now: float) -> Trial | None:
        """Start the next trial at a place on one of the hosts, on the task that has the fewest; None if there is none.

        A trial that has lost its host comes before those that have not started, and goes to another host if it can.
        """
        waiting = [] if self.is_stopped else self.in_state(TrialState.PENDING)
        taken = [trial.place for trial in self.running if trial.place is not None]
        ranks = {place.rank for place in taken}
        free = [place for place in self._places if place.host in hosts and place.rank not in ranks]
        if not (waiting and free):
            return None
        loads = Counter(place.short for place in taken)
        trial = waiting[0]
        lost = None if trial.place is None else trial.place.host
        trial.place = min(free, key=lambda place: (place.host == lost, loads[place.short]))
        trial.state, trial.attempt = TrialState.RUNNING, trial.attempt + 1
        trial.started_at, trial.seconds, trial.metrics = now, 0.0, {}
        return trial

    def end(self, number: int, state: TrialState, now: float) -> Trial:
        """Record that a trial that ran has ended."""
        trial = self.trials[number]
        trial.state, trial.seconds = state, now - trial.started_at
        return trial

    def lose(self, host: str, now: float) -> list[Trial]:
        """Record that a host is lost; return the trials that ran there, which restart unless it was the last time.

        A trial may be the reason why its hosts are lost.
        """
        lost = [trial for trial in self.running if trial.place is not None and trial.place.host == host]
        for trial in lost:
            has_to_end = trial.attempt + 1 >= settings.SWEEP_LOSSES_MAX
            self.end(trial.number, TrialState.FAILED if has_to_end else TrialState.PENDING, now)
        return lost

    def rows(self) -> list[dict[str, Any]]:
        """Return what the result says of each trial, the best first; those that have failed come last."""
        best = self._sweep.best
        return [
            trial.to_row()
            for trial in sorted(
                self.trials,
                key=lambda trial: (
                    _LAST.index(trial.state),
                    0.0 if best is None else best.sort_key(trial.metrics),
                    trial.number,
                ),
            )
        ]


def as_member(place: Member, number: int) -> Member:
    """Return a trial as the only member of a group."""
    return replace(place, job="trial", index=number, rank=0)


def select_group(topology: ClusterTopology, options: RunOptions) -> tuple[Member, ...]:
    """Return the members of a launch or the places of a sweep's trials, or raise a ClusterError.

    A place for each task comes before the second one of any task, and no task has more places than there are trials.
    Trials are placed on the job `worker` by default or, if there is none, on all but `ps`.
    """
    jobs = options.jobs or ()
    if options.sweep is None:
        return select_members(topology, jobs)
    existing = list(dict.fromkeys(task.job for task in topology.tasks))
    default = ["worker"] if "worker" in existing else [job for job in existing if job != PS_JOB]
    tasks = select_members(topology, jobs or default, "--on")
    rounds = min(options.sweep.at_a_time, len(options.sweep.trials))
    return tuple(replace(tasks[rank % len(tasks)], rank=rank) for rank in range(rounds * len(tasks)))
