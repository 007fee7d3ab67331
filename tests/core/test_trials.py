"""Where the trials of a sweep run, in which order, and how they are sorted; the only fake is the clock."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.test_groups import topology
from tfcluster import settings
from tfcluster.core.groups import Member
from tfcluster.core.runs import Best, RunOptions, Sweep
from tfcluster.core.trials import TrialQueue, TrialState, select_group
from tfcluster.errors import ClusterError

HOSTS = ("alpha", "beta", "gamma")
SUCCEEDED, FAILED = TrialState.SUCCEEDED, TrialState.FAILED


def places(at_a_time: int = 1, hosts: tuple[str, ...] = HOSTS) -> list[Member]:
    """The places of a worker on each host."""
    indices = [index for _ in range(at_a_time) for index in range(len(hosts))]
    return [Member("worker", index, rank, hosts[index], "a") for rank, index in enumerate(indices)]


def queue(trials: int, at_a_time: int = 1, **options: Any) -> TrialQueue:
    return TrialQueue(Sweep(tuple({"x": str(number)} for number in range(trials)), **options), places(at_a_time))


def start_all(sweep: TrialQueue, hosts: tuple[str, ...] = HOSTS, now: float = 0.0) -> list[tuple[int, str]]:
    """Start what can be started; return each trial with its host."""
    started = []
    while trial := sweep.start_next(hosts, now):
        assert trial.place is not None
        started.append((trial.number, trial.place.host))
    return started


def test_a_trial_starts_when_a_place_is_free() -> None:
    sweep = queue(5)
    assert start_all(sweep) == [(0, "alpha"), (1, "beta"), (2, "gamma")]
    sweep.end(1, SUCCEEDED, 1.0)
    assert start_all(sweep) == [(3, "beta")]
    for number in (0, 2, 3):
        sweep.end(number, SUCCEEDED, 2.0)
    assert start_all(sweep) == [(4, "alpha")]
    assert not sweep.has_ended
    sweep.end(4, FAILED, 3.0)
    assert sweep.has_ended


def test_the_task_with_the_fewest_trials_gets_the_next() -> None:
    sweep = queue(9, at_a_time=2)
    assert [host for _, host in start_all(sweep)] == [*HOSTS, *HOSTS]
    sweep.end(0, SUCCEEDED, 1.0)  # alpha's first place is free, and both of beta's
    sweep.end(1, SUCCEEDED, 1.0)
    sweep.end(4, SUCCEEDED, 1.0)
    assert start_all(sweep) == [(6, "beta"), (7, "alpha"), (8, "beta")]


def test_the_trials_of_a_lost_host_start_again_first_and_elsewhere() -> None:
    sweep = queue(6)
    start_all(sweep)
    assert [trial.number for trial in sweep.lose("beta", 5.0)] == [1]
    assert start_all(sweep, ("alpha", "gamma")) == []
    sweep.end(2, SUCCEEDED, 6.0)
    assert start_all(sweep, ("alpha", "gamma"), 7.0) == [(1, "gamma")]
    assert sweep.trials[1].attempt == 1
    sweep.end(1, SUCCEEDED, 9.0)
    assert sweep.trials[1].seconds == 2.0, "those of the last attempt"
    assert start_all(sweep) == [(3, "beta"), (4, "gamma")], "beta is back"


def test_a_trial_that_has_lost_its_host_goes_to_another_one_even_if_its_own_is_back() -> None:
    sweep = queue(2)
    assert start_all(sweep) == [(0, "alpha"), (1, "beta")]
    sweep.lose("alpha", 1.0)
    assert start_all(sweep) == [(0, "gamma")]


def test_a_trial_that_has_lost_its_host_again_and_again_has_failed() -> None:
    sweep = queue(1)
    for attempt in range(settings.SWEEP_LOSSES_MAX):
        ((_, host),) = start_all(sweep)
        (lost,) = sweep.lose(host, 1.0)
        assert lost.attempt == attempt
    assert lost.state is FAILED
    assert sweep.has_ended


def test_a_stopped_sweep_starts_nothing_and_ends_with_the_trials_that_run() -> None:
    sweep = queue(5, max_failures=1)
    start_all(sweep)
    sweep.end(0, FAILED, 1.0)
    assert start_all(sweep) == [(3, "alpha")], "one may fail"
    sweep.end(1, FAILED, 1.0)
    assert start_all(sweep) == []
    sweep.end(2, SUCCEEDED, 1.0)
    assert not sweep.has_ended
    sweep.end(3, SUCCEEDED, 1.0)
    assert sweep.has_ended
    other = queue(2)
    other.stop()
    assert (start_all(other), other.has_ended) == ([], True)


@pytest.mark.parametrize(
    ("best", "order"),
    [(None, [0, 1, 2, 3, 5, 4]), ("loss", [1, 0, 2, 3, 5, 4]), ("max:loss", [0, 1, 2, 3, 5, 4])],
)
def test_the_best_come_first_those_without_the_metric_later_and_failed_ones_last(
    best: str | None, order: list[int]
) -> None:
    sweep = queue(6, at_a_time=2, best=None if best is None else Best.parse(best))
    start_all(sweep)
    for number, loss in [(0, 3.0), (1, 2.0), (2, None), (4, 1.0)]:
        sweep.trials[number].metrics["loss"] = loss
    for number in range(4):
        sweep.end(number, SUCCEEDED, 1.0)
    sweep.end(4, FAILED, 1.0)
    rows = sweep.rows()
    assert [row["trial"] for row in rows] == order
    assert rows[-1] == {
        "trial": 4,
        "parameters": {"x": 4},
        "state": "failed",
        "metrics": {"loss": 1.0},
        "host": "beta",
        "seconds": 1.0,
    }


def test_the_name_of_a_metric() -> None:
    assert [Best.parse(text) for text in ("loss", "min:loss", "max:acc", "val:loss", "max:min:x")] == [
        Best("loss"),
        Best("loss"),
        Best("acc", is_highest=True),
        Best("val:loss"),
        Best("min:x", is_highest=True),
    ]
    for text in ("", "max:", "--dry-run"):
        with pytest.raises(ClusterError, match="names no metric"):
            Best.parse(text)


@pytest.mark.parametrize(
    ("tasks", "jobs", "chosen"),
    [
        (("ps:0", "worker:0", "worker:1", "chief:0"), (), ["worker:0", "worker:1"]),
        (("ps:0", "local:0", "chief:0"), (), ["chief:0", "local:0"]),
        (("ps:0", "worker:0"), ("ps",), ["ps:0"]),
    ],
)
def test_trials_run_on_workers_or_else_on_all_but_ps(
    tasks: tuple[str, ...], jobs: tuple[str, ...], chosen: list[str]
) -> None:
    options = RunOptions("script", {"args": []}, jobs=jobs, sweep=Sweep(({},) * 3, at_a_time=2))
    group = select_group(topology(*tasks), options)
    assert [each.short for each in group] == [*chosen, *chosen]
    assert [each.rank for each in group] == list(range(2 * len(chosen)))


def test_a_cluster_of_ps_alone_has_no_places_by_default() -> None:
    options = RunOptions("script", {"args": []}, jobs=(), sweep=Sweep(({},)))
    with pytest.raises(ClusterError) as caught:
        select_group(topology("ps:0"), options)
    assert caught.value.hint == "Choose with --on from: ps."


def test_no_task_has_more_places_than_there_are_trials() -> None:
    options = RunOptions("script", {"args": []}, jobs=(), sweep=Sweep(({},) * 3, at_a_time=200_000))
    assert len(select_group(topology("worker:0", "worker:1"), options)) == 6
