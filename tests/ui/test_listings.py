"""What lists and lines are made of: numbers, states, outcomes, trials; tests/test_goldens.py has whole lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.cast import DEVICES, CastCluster, print_at, status_of, tfcluster
from tests.cast import cast as cast
from tests.goldens import golden
from tfcluster.core.run_events import TrialEvent
from tfcluster.core.states import ClusterState, RunState, TaskState
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.ui.format import format_bytes, format_duration, format_optional, format_rate, short_device, style_of
from tfcluster.ui.listings import format_outcome, show_devices, show_status
from tfcluster.ui.trials import format_trial, to_csv

_SCRIPT: dict[str, Any] = {"program": "script", "parameters": {}, "result": None, "error": None}
_DIED = {"message": "the driver of pi-1 died (SIGKILL); its last output:\n  Traceback\n  MemoryError"}
_NAMES = [f"w:{number}" for number in range(9)]


def of_samples(rate: float) -> str:
    return format_rate(rate, "samples").removesuffix(" samples/s")


@pytest.mark.parametrize(
    ("show", "values", "words"),
    [
        (format_duration, [None, 0, 0.04, 0.41, 3.14, 9.9], ["-", "0.0s", "0.0s", "0.4s", "3.1s", "9.9s"]),
        (format_duration, [9.97, 10, 59.4, 59.7, 60], ["10s", "10s", "59s", "1m 0s", "1m 0s"]),
        (format_duration, [125.4, 125.9, 3599, 3600], ["2m 5s", "2m 6s", "59m 59s", "1h 0m"]),
        (format_duration, [15000, 86399, 86400, 269940], ["4h 10m", "23h 59m", "1d 0h", "3d 2h"]),
        (format_bytes, [None, 0, 1023, 1024, 1536], ["-", "0 B", "1023 B", "1 KiB", "2 KiB"]),
        (format_bytes, [(1 << 20) - 1, 97 << 20, 1 << 30, 5 << 40], ["1 MiB", "97 MiB", "1.0 GiB", "5120.0 GiB"]),
        (of_samples, [0, 0.5, 999, 999.7, 1000], ["0", "0.5", "999", "1 k", "1 k"]),
        (of_samples, [512_300_000, 999_700_000, 2_270_000_000], ["512 M", "1 G", "2.27 G"]),
        (lambda count: pluralize(count, "task"), [0, 1, 1234567], ["0 tasks", "1 task", "1,234,567 tasks"]),
        (short_device, ["/job:w/replica:0/task:0/device:CPU:0", "/job:w/task:1/device:GPU:12"], ["CPU:0", "GPU:12"]),
        (format_optional, [None, 0, 17, ""], ["-", "0", "17", ""]),
        (lambda count: summarize_list(_NAMES[:count]), [0, 1, 4], ["", "w:0", "w:0, w:1, w:2, w:3"]),
        (lambda count: summarize_list(_NAMES[:count])[18:], [5, 9], [" and 1 more", " and 5 more"]),
        (style_of, ["localhost:2222"], [""]),
    ],
)
def test_a_value_in_words(show: Callable[[Any], str], values: Sequence[Any], words: list[str]) -> None:
    assert [show(value) for value in values] == words


def test_every_state_has_a_style() -> None:
    assert all(style_of(state.value) for state in (*TaskState, *ClusterState, *RunState))


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        ({"error": _DIED}, "the driver of pi-1 died (SIGKILL); its last output: MemoryError"),
        ({"result": {"exit_code": 0}}, ""),
        ({"result": {"exit_code": 0, "restarts": 0}}, ""),
        ({"result": {"exit_code": 0, "restarts": 2}}, "2 restarts"),
        (
            {"result": {"exit_code": 0, "restarts": 1, "metrics": {"worker:0": {"loss": 0.25}}}},
            "worker:0: loss=0.25; 1 restart",
        ),
    ],
)
def test_the_outcome_of_a_script(run: dict[str, Any], outcome: str) -> None:
    assert format_outcome({**_SCRIPT, **run}) == outcome


def test_a_cluster_on_one_host_names_it_once(cast: CastCluster) -> None:
    golden("status-of-one-host-narrow.txt", print_at(60, lambda: show_status(status_of("alpha"))))
    golden("devices-of-one-host.txt", print_at(1000, lambda: show_devices(DEVICES["alpha"])))


def test_numbers_are_not_split_on_a_narrow_terminal(cast: CastCluster) -> None:
    for width in (20, 40, 60, 70, 75, 80, 90, 100, 120):
        words = tfcluster("runs", columns=width).split()
        for word in ("pi-0002", "2026-01-28", "04:00:00", "samples=10000000", "pi=3.14145", "stderr=0.00051929"):
            assert word in words, width


def trial_row(**more: Any) -> dict[str, Any]:
    trial = {"trial": 0, "parameters": {"lr": 0.1}, "state": "succeeded", "metrics": {}, "host": "alpha", "seconds": 2}
    return {**trial, **more}


def test_no_two_columns_of_trials_have_the_same_name() -> None:
    rows = [
        trial_row(parameters={"lr": 0.1, "state": "a,b"}, metrics={"lr": 1.5, "trial": 7, "loss": None}),
        trial_row(trial=1),
    ]
    assert to_csv(rows).splitlines() == [
        "trial,lr,parameter state,state,metric lr,metric trial,loss,host,seconds",
        '0,0.1,"a,b",succeeded,1.5,7,,alpha,2',
        "1,0.1,,succeeded,,,,alpha,2",
    ]


@pytest.mark.parametrize(
    ("state", "metrics", "problem", "line"),
    [
        ("running", {}, None, None),
        ("succeeded", {"loss": 0.25}, None, "trial:3 (lr=0.1) succeeded after 2.0s: loss=0.25"),
        ("failed", {"loss": 0.25}, "ValueError: no", "trial:3 (lr=0.1) failed: ValueError: no"),
        ("pending", {}, "the connection is lost", "trial:3 (lr=0.1) restarts: the connection is lost"),
        ("cancelled", {}, None, "trial:3 (lr=0.1) cancelled after 2.0s"),
    ],
)
def test_what_has_happened_to_a_trial(
    state: str, metrics: dict[str, Any], problem: str | None, line: str | None
) -> None:
    assert format_trial(TrialEvent(3, {"lr": 0.1}, state, metrics, "alpha", 2.0, 0, problem)) == line
