"""Shards of work: each done once, a failure ends them all, and a device that is free takes more.

Devices are played by functions that wait for each other with locks and events, never for time to pass.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import count, islice
from math import inf
from typing import Any, NoReturn

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import tfcluster
from tfcluster.errors import ClusterError
from tfcluster.programs import session_pool, sessions, settings, shards
from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.map_reduce import map_reduce
from tfcluster.programs.sessions import SERVER_LOST, check_listening, is_serving, open_session
from tfcluster.programs.shards import DeviceLostError, ShardResult, StepTimeoutError, map_shards


@pytest.fixture(autouse=True)
def join_threads() -> Iterator[Callable[[], None]]:
    """Waits for the threads that the test has started, so that none remains."""
    before = set(threading.enumerate())

    def join() -> None:
        for thread in set(threading.enumerate()) - before:
            thread.join(30)
            assert not thread.is_alive()

    yield join
    join()


def shards_of(parts: Iterable[ShardResult[Any]]) -> list[int]:
    """The shards of several parts, in their order."""
    return sorted(shard for part in parts for shard in range(part.first, part.first + part.count))


@hypothesis_settings(deadline=None, max_examples=100)
@given(devices=st.integers(1, 6), shards=st.integers(0, 3000))
def test_every_shard_is_done_exactly_once(devices: int, shards: int) -> None:
    names = [f"d{number}" for number in range(devices)]

    def step(device: str, first: int, size: int) -> tuple[str, int]:
        assert size > 0
        return device, sum(range(first, first + size))

    parts = list(map_shards(names, shards, step))
    assert [part.value[0] for part in parts] == [part.device for part in parts]
    assert shards_of(parts) == list(range(shards))
    assert sum(part.value[1] for part in parts) == sum(range(shards))


class Clock:
    """A clock in place of time.monotonic, which stands still unless a step advances it (one device only)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(shards.time, "monotonic", lambda: self.now)  # type: ignore[attr-defined]


def sizes(monkeypatch: pytest.MonkeyPatch, shards: int, seconds_a_shard: float) -> list[int]:
    clock = Clock(monkeypatch)

    def step(device: str, first: int, size: int) -> None:
        clock.now += size * seconds_a_shard

    return [part.count for part in map_shards(["d"], shards, step)]


def test_steps_grow_fourfold_to_their_time_and_end_with_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    # 0.4 s hold 409.6 shards of 1/1024 s.
    assert sizes(monkeypatch, 2000, 1 / 1024) == [1, 4, 16, 64, 256, 409, 409, 409, 409, 23]
    assert sizes(monkeypatch, 5, 1.0) == [1, 1, 1, 1, 1]
    assert sizes(monkeypatch, 1 + 4 + 16 + 64 + 256, 0.0) == [1, 4, 16, 64, 256]


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


def test_an_exception_of_a_step_is_raised_and_no_step_starts_after_it(join_threads: Callable[[], None]) -> None:
    both_in_step = threading.Barrier(2)
    raised = threading.Event()
    started: list[str] = []

    def step(device: str, first: int, size: int) -> None:
        started.append(device)
        both_in_step.wait(30)
        if device == "bad":
            raise ValueError("broken")
        assert raised.wait(30)  # ends only when the caller has the error

    with pytest.raises(ValueError, match=r"^broken$"):
        list(map_shards(["bad", "good"], 100_000, step))
    raised.set()
    join_threads()
    assert sorted(started) == ["bad", "good"]


def test_a_step_that_exits_is_raised_in_the_callers_thread() -> None:
    with pytest.raises(SystemExit):
        list(map_shards(["a", "b"], 10, lambda *_: sys.exit(3)))


def test_a_failure_stops_the_other_devices_before_the_caller_gets_it(join_threads: Callable[[], None]) -> None:
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


def test_closing_the_iterator_stops_the_work(join_threads: Callable[[], None]) -> None:
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


@dataclass
class Played:
    """Steps of devices that sum up their shards, and what goes wrong in them."""

    lost: dict[str, float] = field(default_factory=dict)  # how often a device is lost before it does a step
    most: float = inf  # the shards of a step that ends in time
    deadly: int | None = None  # this shard loses each device that works on it
    endless: int | None = None  # this shard alone takes too long
    sizes: list[int] = field(default_factory=list)  # of all steps that were tried

    def __call__(self, device: str, first: int, size: int) -> int:
        self.sizes.append(size)
        shards = range(first, first + size)
        if self.lost.get(device, 0) > 0:
            self.lost[device] -= 1
            raise DeviceLostError(f"{device} is lost", worked=False)
        if self.deadly in shards:
            raise DeviceLostError(f"{device} is lost", worked=True)
        if size > self.most or self.endless in shards:
            raise StepTimeoutError(120)
        return sum(shards)


@pytest.mark.parametrize(
    ("played", "late", "used"),
    [
        (Played(lost={"a": 2, "b": 2}), [], None),
        (Played(lost={"a": inf}), [], {"b"}),
        (Played(most=3), [], None),
        (Played(), ["b"], {"a"}),  # a late one that never answers is not waited for
    ],
    ids=["both lost and back", "one lost", "too slow", "one late"],
)
def test_every_shard_is_done_once_whatever_happens_to_devices(
    monkeypatch: pytest.MonkeyPatch, played: Played, late: list[str], used: set[str] | None
) -> None:
    monkeypatch.setattr(settings, "MAP_ALL_LOST_SECONDS", 60.0)
    parts = list(map_shards(["a", "b"], 1000, played, late=late, answers=lambda device: device not in late))
    assert shards_of(parts) == list(range(1000))
    assert sum(part.value for part in parts) == sum(range(1000))
    assert used is None or {part.device for part in parts} == used
    assert max(played.sizes) > 3, "those that take too long are tried"


@pytest.mark.parametrize(
    ("played", "late", "all_lost_s", "message"),
    [
        (Played(lost={"a": inf, "b": inf}), [], 0.05, r"a is lost; b is lost\n"),
        (Played(lost={"a": inf}), ["b"], 0.05, r"a is lost\n"),
        (Played(deadly=7), [], 60.0, r"5 tasks were lost while they worked on shard"),
        (Played(endless=7), [], 60.0, r"shard 7 takes longer than 120 s, the limit of a step\nhint: .*smaller"),
    ],
    ids=["all lost", "all but a late one lost", "one shard loses all", "one shard takes too long"],
)
def test_the_work_fails_if_no_device_can_do_it(
    monkeypatch: pytest.MonkeyPatch, played: Played, late: list[str], all_lost_s: float, message: str
) -> None:
    monkeypatch.setattr(settings, "MAP_ALL_LOST_SECONDS", all_lost_s)
    monkeypatch.setattr(settings, "MAP_RETRY_INITIAL_SECONDS", 0.001)
    with pytest.raises(ClusterError, match=f"^{message}"):
        list(map_shards(["a", "b"], 10, played, late=late, answers=lambda device: device not in late))


def test_a_lost_device_takes_no_step_before_it_answers_and_begins_with_one_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "MAP_RETRY_INITIAL_SECONDS", 0.001)
    happened: list[int | str] = []

    def step(device: str, first: int, size: int) -> None:
        happened.append(size)
        if size > 1:
            raise DeviceLostError("a is slow", worked=False)

    def answers(device: str) -> bool:
        happened.append("asked")
        return happened[-2] == "asked"

    parts = map_shards(["a"], 100, step, answers=answers)
    assert [part.count for part in islice(parts, 2)] == [1, 1]
    parts.close()  # type: ignore[attr-defined]
    assert happened[:5] == [1, 4, "asked", "asked", 1]


def test_a_late_device_takes_shards_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "MAP_RETRY_MAX_SECONDS", 0.001)
    asked, joined = count(1), threading.Event()

    def answers(device: str) -> bool:
        return next(asked) > 3

    def step(device: str, first: int, size: int) -> None:
        if device == "b":
            joined.set()
        else:
            assert joined.wait(30), "a has all the work until b has joined"

    parts = list(map_shards(["a", "b"], 20, step, late=["b"], answers=answers))
    assert {part.device for part in parts} == {"a", "b"}
    assert shards_of(parts) == list(range(20))
    assert next(asked) == 5


def test_a_task_that_only_accepts_connections_does_not_answer_and_a_late_one_that_answers_joins(
    local_run: Callable[[int], Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = local_run(2)
    [device, late] = context.devices
    pool = tfcluster.sessions(lambda: ({}, tf.constant(1)))
    with socket.create_server(("localhost", 0)) as server, monkeypatch.context() as patch:
        patch.setattr(settings, "SESSION_CONNECT_SECONDS", 0.1)
        patch.setitem(context.addresses, "local", [f"localhost:{server.getsockname()[1]}"])
        assert not sessions.answers(device)
    assert sessions.answers(device)
    context.devices, context.late_devices = (device,), (late,)
    parts = list(pool.map(lambda used, first, count: sessions.short_task(used), 50))
    assert sum(part.count for part in parts) == 50
    assert context.notes in ([], ["local:0 answers now, and has joined the run"])
    assert pool._answers(device)
    assert pool._answers(late)
    assert pool._answers(late)
    assert context.notes == ["local:0 answers now, and has joined the run"]


def test_results_that_are_taken_when_the_sessions_are_closed_are_an_error(local_run: Callable[[int], Context]) -> None:
    local_run(2)
    with tfcluster.sessions(lambda: ({}, tf.constant(1))) as pool:
        parts = pool.map(lambda used, first, count: pool.run(used, {}), 50)
    with pytest.raises(ClusterError, match="are closed\nhint: Iterate over `map` inside the `with` block"):
        next(parts)


def test_map_reduce_reduces_in_the_order_of_the_shards(local_run: Callable[[int], Context]) -> None:
    for devices in (1, 3):
        context = local_run(devices)
        # Neither commutative nor associative.
        assert map_reduce(lambda shard: shard, 50, lambda a, b: (3 * a + b) % 1009) == reduce(
            lambda a, b: (3 * a + b) % 1009, range(50)
        )
        assert sum(work["shards"] for work in context.device_stats.values()) == 50
        assert all(work["ops"] > 0 for work in context.device_stats.values())


def test_map_reduce_of_several_tensors(local_run: Callable[[int], Context]) -> None:
    local_run(2)

    def moments(shard: Any) -> dict[str, Any]:
        numbers = tf.range(10 * shard, 10 * (shard + 1))
        return {"count": tf.size(numbers), "sums": tf.stack([tf.reduce_sum(numbers), tf.reduce_sum(numbers**2)])}

    total = map_reduce(moments, 7, lambda a, b: {key: a[key] + b[key] for key in a})
    assert total["count"] == 70
    assert total["sums"].tolist() == [sum(range(70)), sum(number**2 for number in range(70))]


def test_work_is_counted_in_its_unit(local_run: Callable[[int], Context]) -> None:
    context = local_run(2)
    events: list[dict[str, Any]] = []
    context.emit = lambda event, **fields: events.append(fields)
    map_reduce(lambda shard: shard, 50, unit="points", work=lambda shards: min(1000 * shards, 49_500))
    assert sum(work["points"] for work in context.device_stats.values()) == 49_500
    assert (events[-1]["done"], events[-1]["total"], events[-1]["unit"]) == (49_500, 49_500, "points")


@pytest.mark.parametrize(
    ("at_most", "is_chosen", "used"),
    [(1, False, [0]), (3, False, [0, 2, 4]), (4, False, [0, 1, 3, 5]), (9, False, range(7)), (3, True, range(7))],
)
def test_few_devices_are_spread_evenly_unless_the_user_chose_them(
    at_most: int, is_chosen: bool, used: Iterable[int]
) -> None:
    names = [f"d{number}" for number in range(7)]
    context = Context("pi-1", {}, tuple(names[:5]), lambda event, **fields: None, late_devices=tuple(names[5:]))
    context.chose_devices = is_chosen
    set_current_run(context)
    assert tfcluster.devices(at_most) == [names[number] for number in used]


def test_map_reduce_outside_a_run_or_without_shards(local_run: Callable[[int], Context]) -> None:
    with pytest.raises(ClusterError, match="not part of a run"):
        map_reduce(lambda shard: shard, 5)
    local_run(1)
    with pytest.raises(ValueError, match="must be shards"):
        map_reduce(lambda shard: shard, 0)


class Failing:
    """Opens sessions, and counts them. The first one fails once, in its first step of several shards."""

    def __init__(self, error: tf.errors.OpError) -> None:
        self.opened = 0
        self._error: tf.errors.OpError | None = error

    def __call__(self, graph: tf.Graph, used: Any, *, as_written: bool, optimized: bool) -> Any:
        self.opened += 1
        assert optimized, "what a script's function does may be worth it"
        session = open_session(graph, used)
        whole_step = session.run

        def step(outputs: Any, feed: dict[Any, int], *arguments: Any) -> Any:
            _, shards = feed.values()
            if self._error is not None and shards > 1:
                error, self._error = self._error, None
                raise error
            return whole_step(outputs, feed, *arguments)

        session.run = step
        return session


def test_a_session_that_lost_its_server_is_opened_again(
    local_run: Callable[[int], Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = local_run(2)
    opened = Failing(tf.errors.AbortedError(None, None, "Session 1ca0cb5c98d91fdf is not found."))
    monkeypatch.setattr(sessions, "open_session", opened)
    assert map_reduce(lambda shard: shard, 100) == sum(range(100))
    assert opened.opened == 2
    assert context.notes == ["local:0 was lost; its work in progress was done again"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_step_timeout_is_no_loss_if_the_task_responds(
    local_run: Callable[[int], Context], monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    context = local_run(1)
    opened = Failing(tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded"))
    monkeypatch.setattr(sessions, "open_session", opened)
    if not answers:
        monkeypatch.setattr(session_pool, "is_serving", lambda device, timeout_ms: False)
    assert map_reduce(lambda shard: shard, 100) == sum(range(100))
    assert opened.opened == (1 if answers else 2)
    assert context.notes == ([] if answers else ["local:0 was lost; its work in progress was done again"])


def test_a_task_that_accepts_connections_and_does_not_respond_is_not_serving(
    local_run: Callable[[int], Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = local_run(1)
    assert is_serving(context.devices[0], settings.SERVER_CHECK_TIMEOUT_MS)
    with socket.create_server(("localhost", 0)) as mute:
        context.addresses["local"][0] = f"localhost:{mute.getsockname()[1]}"
        assert not is_serving(context.devices[0], 100)


NETWORK_LOST = ("EHOSTUNREACH", "ENETUNREACH", "ENETDOWN", "EHOSTDOWN", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET")

ERRORS = [OSError(number, os.strerror(number)) for number in (getattr(errno, name) for name in NETWORK_LOST)]
ERRORS += [socket.gaierror(number, "no address") for number in (socket.EAI_AGAIN, socket.EAI_NONAME)]
ERRORS += [TimeoutError("timed out")]  # as a host that drops what it gets: create_connection sets no number
ERRORS += [OSError(errno.EMFILE, "Too many open files")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_lost_network_is_a_lost_server_and_an_exhausted_limit_is_none(
    local_run: Callable[[int], Context], monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """The network is played, as a real one needs seconds for each of these errors."""

    def fail(*arguments: Any) -> NoReturn:
        raise error

    context = local_run(1)
    monkeypatch.setattr(socket, "create_connection", fail)
    is_lost = error.errno != errno.EMFILE
    with pytest.raises(ConnectionError if is_lost else OSError) as caught:
        check_listening(context.devices[0])
    assert isinstance(caught.value, SERVER_LOST) is is_lost
    assert not is_lost or isinstance(caught.value.__cause__, OSError)
