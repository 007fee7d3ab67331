"""What scripts report to their run (a value, notes, progress) and ask of it (devices, a seed), and without a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import tfcluster
from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.programs.context import Context

Run = Callable[[int], Context]


def test_outside_a_run_reports_are_checked_and_ignored_and_devices_are_an_error() -> None:
    tfcluster.result({"a": 1})
    tfcluster.note("nothing")
    tfcluster.progress(1, 2)
    for call in (tfcluster.devices, tfcluster.seed, lambda: tfcluster.sessions(lambda: ({}, ()))):
        with pytest.raises(ClusterError, match="this program is not part of a run"):
            call()


def test_a_member_of_a_launch_has_no_devices_of_servers(local_run: Run) -> None:
    context = local_run(1)
    context.is_member = True
    tfcluster.result(1)
    tfcluster.note("nothing")
    assert (context.result, context.notes) == (None, [])
    for call in (tfcluster.devices, lambda: tfcluster.map_reduce(lambda shard: shard, 3)):
        with pytest.raises(ClusterError, match="a member of `tfcluster launch` does not compute"):
            call()


def test_a_run_without_a_ready_task_says_why(local_run: Run) -> None:
    context = local_run(1)
    context.devices, context.missing = (), {"/job:local/task:0": "local:0 has failed"}
    with pytest.raises(ClusterError, match=r"^local:0 has failed\n"):
        tfcluster.devices(at_most=3)


def test_the_last_value_counts_as_it_was_given(local_run: Run) -> None:
    context, value = local_run(1), {"loss": [0.5]}
    tfcluster.result("first")
    tfcluster.result(value)
    value["loss"].append(1.0)
    assert context.result == {"loss": [0.5]}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (object(), TypeError),
        ({1, 2}, TypeError),
        (math.nan, ValueError),
        ([math.inf], ValueError),
        (nested(settings.RESULT_MAX_DEPTH), ValueError),
        ("x" * settings.RESULT_MAX_CHARS, ValueError),
    ],
    ids=["object", "set", "nan", "inf", "deep", "long"],
)
def test_what_json_does_not_have_is_refused(local_run: Run, value: Any, error: type[Exception]) -> None:
    context = local_run(1)
    with pytest.raises(error, match=r"^tfcluster\.result: "):
        tfcluster.result(value)
    assert context.result is None
    tfcluster.result(nested(settings.RESULT_MAX_DEPTH - 1))


def test_notes_have_limits(local_run: Run) -> None:
    context = local_run(1)
    for number in range(2 * settings.NOTES_MAX):
        tfcluster.note(f"{number} " + "x" * 2 * settings.NOTE_MAX_CHARS)
    assert len(context.notes) == settings.NOTES_MAX
    assert {len(note) for note in context.notes} == {settings.NOTE_MAX_CHARS}


def test_progress_is_thinned_and_its_last_report_is_not_lost(local_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = [100.0], list[dict[str, Any]]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    context = local_run(1)
    context.emit = lambda event, **fields: sent.append(fields)
    for done in range(1000):
        tfcluster.progress(done, 2000, "lines")
        now[0] += settings.PROGRESS_INTERVAL_SECONDS / 10
    assert 95 <= len(sent) <= 105
    context.flush_progress()
    context.flush_progress()
    assert [each["done"] for each in sent[-2:]] != [999, 999]
    assert sent[-1]["done"] == 999
    for _ in range(100):
        tfcluster.progress(2000, 2000, "lines")
    assert [each["done"] for each in sent[-2:]] == [999, 2000]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((2, 1), ValueError),
        ((-1, 1), ValueError),
        ((0.5, 1), TypeError),
        ((0, 1, ""), ValueError),
        ((0, 1, "a\nb"), ValueError),
        ((0, 1, b"a"), TypeError),
    ],
)
def test_progress_that_cannot_be_is_refused(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        tfcluster.progress(*arguments)


def test_the_seed_is_that_which_was_given_or_the_same_at_each_call(
    local_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TFCLUSTER_SEED", raising=False)
    context = local_run(1)
    assert tfcluster.seed() == tfcluster.seed() == context.seed
    assert context.seed != Context("other", {}, (), lambda event, **fields: None).seed
    monkeypatch.setenv("TFCLUSTER_SEED", "7")
    assert tfcluster.seed() == 7
