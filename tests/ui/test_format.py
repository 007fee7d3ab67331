"""Numbers and states in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfcluster.core.states import ClusterState, RunState, TaskState
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.ui.format import format_bytes, format_duration, format_optional, format_rate, short_device, style_of


def words_of(show: Callable[[Any], str], *values: object) -> list[str]:
    return [show(value) for value in values]


def test_durations_have_two_units() -> None:
    assert words_of(format_duration, None, 0, 0.04, 0.41, 3.14, 9.9, 10, 59.4, 60, 125.4, 125.9, 3599, 3600, 15000) == [
        *("-", "0.0s", "0.0s", "0.4s", "3.1s", "9.9s", "10s", "59s", "1m 0s", "2m 5s", "2m 6s", "59m 59s"),
        *("1h 0m", "4h 10m"),
    ]
    days = 3 * 86400 + 2 * 3600 + 59 * 60
    assert words_of(format_duration, 86399, 86400, days) == ["23h 59m", "1d 0h", "3d 2h"]


def test_memory_is_in_binary_units() -> None:
    assert words_of(format_bytes, None, 0, 1023, 1024, 1536, 97 << 20, 1 << 30, 5 << 40) == [
        *("-", "0 B", "1023 B", "1 KiB", "2 KiB", "97 MiB", "1.0 GiB", "5120.0 GiB"),
    ]


def test_rates_have_metric_prefixes() -> None:
    rates = (0, 0.5, 999, 1000, 512_300_000, 2_270_000_000)
    assert [format_rate(rate, "samples").removesuffix(" samples/s") for rate in rates] == [
        *("0", "0.5", "999", "1 k", "512 M", "2.27 G")
    ]


def test_a_number_that_rounds_up_to_the_next_unit_has_that_unit() -> None:
    assert words_of(format_duration, 59.7, 9.97) == ["1m 0s", "10s"]
    assert [format_rate(rate, "samples") for rate in (999.7, 999_700_000)] == ["1 k samples/s", "1 G samples/s"]
    assert format_bytes((1 << 20) - 1) == "1 MiB"


def test_nouns_names_and_values() -> None:
    assert [pluralize(count, "task") for count in (0, 1, 1234567)] == ["0 tasks", "1 task", "1,234,567 tasks"]
    assert words_of(short_device, "/job:w/replica:0/task:0/device:CPU:0", "/job:w/task:1/device:GPU:12") == [
        *("CPU:0", "GPU:12")
    ]
    assert words_of(format_optional, None, 0, 17, "") == ["-", "0", "17", ""], "only nothing is a dash"
    names = [f"w:{number}" for number in range(9)]
    assert [summarize_list(names[:count]) for count in (0, 1, 4, 5, 9)] == [
        *("", "w:0", "w:0, w:1, w:2, w:3", "w:0, w:1, w:2, w:3 and 1 more", "w:0, w:1, w:2, w:3 and 5 more")
    ]


def test_every_state_has_a_style_and_what_is_none_has_not() -> None:
    assert all(words_of(style_of, *(state.value for state in (*TaskState, *ClusterState, *RunState))))
    assert style_of("localhost:2222") == ""
