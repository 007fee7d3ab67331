"""Shards of work: each done once, a failure ends them all, and a device that is free takes more.

Devices are played by functions that wait for each other with locks and events, never for time to pass.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.programs import map_reduce
from tfcluster.programs.map_reduce import Part, map_shards


@pytest.fixture(autouse=True)
def join_threads() -> Iterator[Callable[[], None]]:
    """Waits for the threads that the test has started, so that none is left behind it."""
    before = set(threading.enumerate())

    def join() -> None:
        for thread in set(threading.enumerate()) - before:
            thread.join(30)
            assert not thread.is_alive()

    yield join
    join()


def shards_of(part: Part[Any]) -> range:
    return range(part.first, part.first + part.count)


@settings(deadline=None, max_examples=200)
@given(devices=st.integers(1, 6), shards=st.integers(0, 3000))
def test_every_shard_is_done_exactly_once(devices: int, shards: int) -> None:
    names = [f"d{number}" for number in range(devices)]
    done: list[range] = []

    def step(device: str, first: int, size: int) -> tuple[str, int]:
        assert size > 0
        return device, sum(range(first, first + size))

    total = 0
    for part in map_shards(names, shards, step):
        done.append(shards_of(part))
        device, value = part.value
        assert device == part.device
        total += value
    assert sorted(shard for each in done for shard in each) == list(range(shards))
    assert total == sum(range(shards))


class Clock:
    """A clock in place of time.monotonic, which stands still unless a step advances it (one device only)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(map_reduce.time, "monotonic", lambda: self.now)  # type: ignore[attr-defined]


def sizes(monkeypatch: pytest.MonkeyPatch, shards: int, seconds_a_shard: float) -> list[int]:
    clock = Clock(monkeypatch)

    def step(device: str, first: int, size: int) -> None:
        clock.now += size * seconds_a_shard

    return [part.count for part in map_shards(["d"], shards, step)]


def test_steps_grow_fourfold_to_their_time_and_end_with_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    # 0.4 s hold 409.6 shards of 1/1024 s.
    assert sizes(monkeypatch, 2000, 1 / 1024) == [1, 4, 16, 64, 256, 409, 409, 409, 409, 23]


def test_steps_stay_at_one_shard_when_shards_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(monkeypatch, 5, 1.0) == [1, 1, 1, 1, 1]


def test_steps_that_take_no_time_grow_fourfold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(monkeypatch, 1 + 4 + 16 + 64 + 256, 0.0) == [1, 4, 16, 64, 256]


def test_few_shards_are_shared_fairly() -> None:
    all_in_step = threading.Barrier(4)

    def step(device: str, first: int, size: int) -> None:
        all_in_step.wait(30)

    parts = list(map_shards(["a", "b", "c", "d"], 4, step))
    assert sorted(part.device for part in parts) == ["a", "b", "c", "d"]
    assert [part.count for part in parts] == [1, 1, 1, 1]


def test_a_free_device_does_what_a_busy_one_would_have_done() -> None:
    others_are_done = threading.Event()

    def step(device: str, first: int, size: int) -> None:
        if device == "slow":
            assert others_are_done.wait(30)

    done: Counter[str] = Counter()
    slow_shards = 0
    for part in map_shards(["slow", "fast"], 1000, step):
        done[part.device] += part.count
        if part.device == "slow":
            slow_shards = part.count
        # The slow device has at most its first step, one shard; all others are the fast one's.
        if done["fast"] >= 1000 - 1:
            others_are_done.set()
    assert done["slow"] == slow_shards <= 1
    assert done["fast"] == 1000 - slow_shards


def test_parts_come_while_others_are_under_way() -> None:
    release = threading.Event()

    def step(device: str, first: int, size: int) -> str:
        if device == "held":
            assert release.wait(30)
        return device

    parts = map_shards(["held", "free"], 32, step)
    assert next(parts).value == "free"
    release.set()
    assert {part.value for part in parts} <= {"held", "free"}


def test_what_a_step_raises_is_raised_and_no_step_starts_after_it(join_threads: Callable[[], None]) -> None:
    both_in_step = threading.Barrier(2)
    raised = threading.Event()
    started: list[str] = []

    def step(device: str, first: int, size: int) -> None:
        started.append(device)
        both_in_step.wait(30)
        if device == "bad":
            raise ValueError("broken")
        assert raised.wait(30)  # ends only when the caller has been told

    with pytest.raises(ValueError, match=r"^broken$"):
        list(map_shards(["bad", "good"], 100_000, step))
    raised.set()
    join_threads()
    assert sorted(started) == ["bad", "good"]


def test_a_failure_stops_the_others_before_the_caller_hears_of_it(join_threads: Callable[[], None]) -> None:
    heard_of_good, bad_is_in_step, bad_has_ended = threading.Event(), threading.Event(), threading.Event()
    threads: dict[str, threading.Thread] = {}
    good_steps = count()

    def step(device: str, first: int, size: int) -> None:
        threads[device] = threading.current_thread()
        if device == "bad":
            bad_is_in_step.set()
            assert heard_of_good.wait(30)
            raise ValueError("broken")
        assert bad_is_in_step.wait(30)
        if next(good_steps):
            assert bad_has_ended.wait(30)

    parts = map_shards(["bad", "good"], 100_000, step)
    assert next(parts).device == "good"
    heard_of_good.set()
    threads["bad"].join(30)
    bad_has_ended.set()
    join_threads()
    assert next(good_steps) <= 2
    with pytest.raises(ValueError, match=r"^broken$"):
        list(parts)


def test_a_caller_that_stops_listening_stops_the_work(join_threads: Callable[[], None]) -> None:
    go_on = threading.Event()
    steps = count()

    def step(device: str, first: int, size: int) -> None:
        if next(steps):
            assert go_on.wait(30)

    parts = map_shards(["d"], 100_000, step)
    assert [part.first for part in islice(parts, 1)] == [0]
    parts.close()  # type: ignore[attr-defined]
    go_on.set()
    join_threads()
    # The step under way has ended, and none has begun after it.
    assert next(steps) <= 2
