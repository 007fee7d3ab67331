"""Numbers and states in words."""

from __future__ import annotations

import pytest

from tfcluster.core.states import ClusterState, RunState, TaskState
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.ui.format import format_bytes, format_duration, format_optional, format_rate, short_device, style_of


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0, "0.0s"),
        (0.04, "0.0s"),
        (0.41, "0.4s"),
        (3.14, "3.1s"),
        (9.9, "9.9s"),
        (10, "10s"),
        (59.4, "59s"),
        (60, "1m 0s"),
        (125.4, "2m 5s"),
        (125.9, "2m 6s"),
        (3599, "59m 59s"),
        (3600, "1h 0m"),
        (15000, "4h 10m"),
        (86399, "23h 59m"),
        (86400, "1d 0h"),
        (3 * 86400 + 2 * 3600 + 59 * 60, "3d 2h"),
    ],
)
def test_durations_have_two_units(seconds: float | None, words: str) -> None:
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "2 KiB"),
        (97 << 20, "97 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_memory_is_in_binary_units(size: int | None, words: str) -> None:
    assert format_bytes(size) == words


@pytest.mark.parametrize(
    ("per_second", "words"),
    [
        (0, "0 samples/s"),
        (0.5, "0.5 samples/s"),
        (999, "999 samples/s"),
        (1000, "1 k samples/s"),
        (512_300_000, "512 M samples/s"),
        (2_270_000_000, "2.27 G samples/s"),
    ],
)
def test_rates_have_metric_prefixes(per_second: float, words: str) -> None:
    assert format_rate(per_second, "samples") == words


@pytest.mark.parametrize(
    ("formatted", "words"),
    [
        (format_duration(59.7), "1m 0s"),
        (format_duration(9.97), "10s"),
        (format_rate(999.7, "samples"), "1 k samples/s"),
        (format_rate(999_700_000, "samples"), "1 G samples/s"),
        (format_bytes((1 << 20) - 1), "1 MiB"),
    ],
)
def test_a_number_that_rounds_up_to_the_next_unit_has_that_unit(formatted: str, words: str) -> None:
    assert formatted == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (1234567, "1,234,567 tasks")]
)
def test_a_noun_agrees_with_its_count(count: int, words: str) -> None:
    assert pluralize(count, "task") == words


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("/job:worker/replica:0/task:0/device:CPU:0", "CPU:0"),
        ("/job:worker/task:1/device:GPU:12", "GPU:12"),
    ],
)
def test_a_device_within_its_task(device: str, words: str) -> None:
    assert short_device(device) == words


@pytest.mark.parametrize(("value", "words"), [(None, "-"), (0, "0"), (17, "17"), ("", "")])
def test_only_nothing_is_a_dash(value: object, words: str) -> None:
    assert format_optional(value) == words


@pytest.mark.parametrize("state", [*TaskState, *ClusterState, *RunState])
def test_every_state_has_a_style(state: TaskState | ClusterState | RunState) -> None:
    assert style_of(state.value)


def test_what_is_no_state_has_no_style() -> None:
    assert style_of("localhost:2222") == ""


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, ""),
        (1, "w:0"),
        (4, "w:0, w:1, w:2, w:3"),
        (5, "w:0, w:1, w:2, w:3 and 1 more"),
        (9, "w:0, w:1, w:2, w:3 and 5 more"),
    ],
)
def test_a_list_of_names_stays_short(count: int, words: str) -> None:
    assert summarize_list([f"w:{number}" for number in range(count)]) == words
