"""Shards that wait, are in progress and are put back: the queue, without threads that compete."""

from __future__ import annotations

import random
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.programs.shards import ShardQueue, Span


def bounds(span: Span | None) -> tuple[int, int] | None:
    return None if span is None else (span.first, span.first + span.count)


def take(queue: ShardQueue, size: int) -> Span:
    span = queue.take(size)
    assert span is not None
    return span


def test_a_device_gets_a_fair_share_at_most_and_nothing_after_stop() -> None:
    queue = ShardQueue(10, 2)
    assert [bounds(queue.take(size)) for size in (3, 100, 100, 100)] == [(0, 3), (3, 7), (7, 9), (9, 10)]
    queue = ShardQueue(5, 1)
    queue.stop()
    assert queue.take(1) is None
    assert not queue.pause(1e6)  # returns at once


def test_shards_of_a_lost_device_are_taken_first_by_others() -> None:
    queue = ShardQueue(10, 2)
    lost = take(queue, 2)
    lost.losses += 1
    queue.put_back(lost)
    again = take(queue, 1)
    assert (bounds(again), again.losses) == ((0, 1), 1)
    assert (bounds(queue.take(1)), bounds(queue.take(1))) == ((1, 2), (2, 3))


def test_a_free_device_waits_for_shards_that_may_be_put_back() -> None:
    queue = ShardQueue(1, 2)
    lost = take(queue, 1)
    taken: list[Span | None] = []

    def do_all() -> None:
        while taken[-1:] != [None]:
            taken.append(queue.take(1))
            if taken[-1] is not None:
                queue.finish()

    other = threading.Thread(target=do_all)
    other.start()
    assert queue.pause(0.01), "the shard is in progress"
    queue.put_back(lost)
    other.join(30)
    assert [bounds(span) for span in taken] == [(0, 1), None]
    assert not queue.pause(1e6), "all is done"


@settings(max_examples=100)
@given(seed=st.integers(), shards=st.integers(0, 40), devices=st.integers(1, 4))
def test_every_shard_is_done_once_despite_losses(seed: int, shards: int, devices: int) -> None:
    draw = random.Random(seed)  # hypothesis takes seconds to draw so much
    queue = ShardQueue(shards, devices)
    in_progress: list[Span] = []
    done: list[int] = []
    while len(done) < shards:
        span = in_progress.pop(0) if len(in_progress) == devices or len(done) + _count(in_progress) == shards else None
        if span is None:
            in_progress.append(take(queue, draw.randint(1, 9)))
        elif draw.randint(0, 3) == 0:
            queue.put_back(span)
        else:
            queue.finish()
            done += range(span.first, span.first + span.count)
    assert sorted(done) == list(range(shards))
    assert queue.take(1) is None


def _count(spans: list[Span]) -> int:
    return sum(span.count for span in spans)
