"""Shards in progress, requeued and done twice: the scheduler, without threads and without time passing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.programs.scheduler import ShardRange, ShardScheduler


def bounds(span: ShardRange | None) -> tuple[int, int] | None:
    return None if span is None else (span.first, span.first + span.count)


def test_a_device_gets_a_fair_share_at_most_and_nothing_after_stop() -> None:
    scheduler = ShardScheduler(10, ["a", "b"])
    assert bounds(scheduler.take("a", 3, 0.0)) == (0, 3)
    assert bounds(scheduler.take("b", 100, 0.0)) == (3, 7)
    assert bounds(scheduler.take("a", 100, 0.0)) == (7, 9)
    assert bounds(scheduler.take("a", 100, 0.0)) == (9, 10)
    assert scheduler.take("b", 1, 0.0) is None
    scheduler = ShardScheduler(5, ["a"])
    scheduler.stop()
    assert scheduler.take("a", 1, 0.0) is None
    assert not scheduler.wait()
    scheduler.pause(1e6)  # returns at once


def test_shards_of_a_lost_device_are_taken_first_by_others() -> None:
    scheduler = ShardScheduler(10, ["a", "b"])
    lost = scheduler.take("a", 2, 0.0)
    assert lost is not None
    scheduler.requeue(lost, "a", worked=True)
    again = scheduler.take("b", 1, 0.0)
    assert bounds(again) == (0, 1)
    assert again is not None
    assert again.losses == 1
    assert bounds(scheduler.take("b", 1, 0.0)) == (1, 2)
    assert bounds(scheduler.take("b", 1, 0.0)) == (2, 3)


def test_a_device_lost_before_its_step_does_not_count_as_a_loss_of_the_shards() -> None:
    scheduler = ShardScheduler(1, ["a"])
    span = scheduler.take("a", 1, 0.0)
    assert span is not None
    scheduler.requeue(span, "a", worked=False)
    assert span.losses == 0
    assert bounds(scheduler.take("a", 1, 0.0)) == (0, 1)


def test_pinned_shards_are_done_by_their_device_until_it_is_lost() -> None:
    scheduler = ShardScheduler(10, ["a", "b"], {"a": [range(0, 2), range(6, 8)], "b": [range(2, 6)]})
    first = scheduler.take("a", 100, 0.0)
    assert bounds(first) == (0, 2)
    assert bounds(scheduler.take("b", 100, 0.0)) == (2, 6)
    assert bounds(scheduler.take("b", 1, 0.0)) == (8, 9)  # pinned to no device
    assert first is not None
    scheduler.requeue(first, "a", worked=True)
    assert bounds(scheduler.take("b", 100, 0.0)) == (0, 2)
    assert bounds(scheduler.take("b", 100, 0.0)) == (9, 10)
    assert bounds(scheduler.take("b", 100, 0.0)) == (6, 7)
    assert bounds(scheduler.take("b", 100, 0.0)) == (7, 8)
    assert scheduler.take("b", 100, 0.0) is None


def test_a_straggler_is_done_twice_and_counts_once() -> None:
    scheduler = ShardScheduler(2, ["a", "b"])
    taken_by_a, other = scheduler.take("a", 1, 100.0), scheduler.take("b", 1, 100.0)
    assert taken_by_a is not None
    assert other is not None
    assert scheduler.finish(other, 2.0)
    assert scheduler.take("b", 1, 100.0 + 5 + 5 * 2) is None, "within the bound"
    second = scheduler.take("b", 1, 100.1 + 5 + 5 * 2)
    assert second is taken_by_a
    assert scheduler.take("b", 1, 1e9) is None, "not by the same device again"
    assert scheduler.finish(second, 1.0)
    assert not scheduler.finish(taken_by_a, 1e6)
    assert not scheduler.wait(), "all is done"


def test_there_are_no_stragglers_before_the_first_step_is_done_and_without_backups() -> None:
    scheduler = ShardScheduler(1, ["a", "b"])
    assert scheduler.take("a", 1, 0.0) is not None
    assert scheduler.take("b", 1, 1e9) is None
    scheduler = ShardScheduler(2, ["a", "b"], backups=False)
    taken_by_a, other = scheduler.take("a", 1, 0.0), scheduler.take("b", 1, 0.0)
    assert taken_by_a is not None
    assert other is not None
    scheduler.finish(other, 1.0)
    assert scheduler.take("b", 1, 1e9) is None


def test_one_of_two_devices_with_the_same_shards_may_be_lost() -> None:
    scheduler = ShardScheduler(2, ["a", "b"])
    taken_by_a, other = scheduler.take("a", 1, 0.0), scheduler.take("b", 1, 0.0)
    assert taken_by_a is not None
    assert other is not None
    scheduler.finish(other, 1.0)
    second = scheduler.take("b", 1, 1e3)
    assert second is taken_by_a
    scheduler.requeue(taken_by_a, "a", worked=True)
    assert scheduler.take("a", 1, 1e3 + 1) is None, "b still works on it"
    assert scheduler.finish(second, 1.0)


@settings(max_examples=40)
@given(data=st.data(), shards=st.integers(0, 40), devices=st.integers(1, 4))
def test_every_shard_is_done_once_despite_losses(data: st.DataObject, shards: int, devices: int) -> None:
    names = [f"d{number}" for number in range(devices)]
    cuts = sorted(data.draw(st.lists(st.integers(0, shards), max_size=6)))
    pinned: dict[str, list[range]] = {name: [] for name in names}
    for low, high in zip(cuts[::2], cuts[1::2], strict=False):
        pinned[data.draw(st.sampled_from(names))].append(range(low, high))
    scheduler = ShardScheduler(shards, names, pinned)
    under_way: dict[str, ShardRange] = {}
    done: list[int] = []
    now = 0.0
    for _ in range(30 * shards + 30):
        now += 1.0
        device = data.draw(st.sampled_from(names))
        span = under_way.pop(device, None)
        if span is None:
            taken = scheduler.take(device, data.draw(st.integers(1, 9)), now)
            if taken is not None:
                under_way[device] = taken
        elif data.draw(st.integers(0, 3)) == 0:
            scheduler.requeue(span, device, worked=True)
        elif scheduler.finish(span, 1e-3):
            done += range(span.first, span.first + span.count)
        if len(done) == shards:
            break
    while len(done) < shards:  # the remaining devices
        for device in names:
            now += 100.0
            span = under_way.pop(device, None) or scheduler.take(device, 100, now)
            if span is not None and scheduler.finish(span, 1e-3):
                done += range(span.first, span.first + span.count)
    assert sorted(done) == list(range(shards))
