"""Steps in blocks: each exactly once, unless a worker or the variables are lost."""

from __future__ import annotations

import random
import threading

import pytest

from tfcluster.programs import settings
from tfcluster.programs.scheduler import StepRange, StepScheduler, next_size


def take(scheduler: StepScheduler, size: int) -> StepRange:
    block = scheduler.take(size)
    assert block is not None
    return block


def test_every_step_is_taken_once() -> None:
    scheduler = StepScheduler(100, 1000, 3)
    seen: list[int] = []
    choose = random.Random(5)
    while not scheduler.is_done:
        block = take(scheduler, choose.randint(1, 50))
        seen += range(block.first, block.first + block.count)
        scheduler.finish(block)
    assert seen == list(range(100, 1100))
    assert scheduler.done == scheduler.steps == 1000


def test_a_block_is_at_most_a_fair_share_of_the_remaining_steps() -> None:
    scheduler = StepScheduler(0, 101, 4)
    scheduler.finish(take(scheduler, 1))
    assert [take(scheduler, 1000).count for _ in range(4)] == [25, 19, 14, 11]


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_first_block_is_done_alone(is_lost: bool) -> None:
    scheduler = StepScheduler(0, 100, 2)
    first = take(scheduler, 10)
    blocks: list[StepRange | None] = []
    waiting = threading.Thread(target=lambda: blocks.append(scheduler.take(10)))
    waiting.start()
    waiting.join(0.1)
    assert not blocks
    if is_lost:
        scheduler.requeue(first)
    else:
        scheduler.finish(first)
    waiting.join(30)
    assert blocks == [first if is_lost else StepRange(10, 10)]


def test_requeued_steps_are_taken_again() -> None:
    scheduler = StepScheduler(0, 10, 1)
    lost = take(scheduler, 6)
    scheduler.requeue(lost)
    assert scheduler.done == 0
    first = take(scheduler, 4)
    assert first == StepRange(0, 4)
    scheduler.finish(first)
    assert take(scheduler, 4) == StepRange(4, 2)
    assert take(scheduler, 4) == StepRange(6, 4)


def test_a_worker_waits_for_steps_that_another_may_requeue() -> None:
    scheduler = StepScheduler(0, 10, 1)
    lost = take(scheduler, 10)
    blocks: list[StepRange | None] = []
    waiting = threading.Thread(target=lambda: blocks.append(scheduler.take(10)))
    waiting.start()
    scheduler.requeue(lost)
    waiting.join(30)
    assert blocks == [lost]


@pytest.mark.parametrize("is_done", [False, True])
def test_stop_wakes_a_waiting_worker(is_done: bool) -> None:
    scheduler = StepScheduler(0, 10, 1)
    block = take(scheduler, 10)
    if is_done:
        scheduler.finish(block)
    blocks: list[StepRange | None] = []
    waiting = threading.Thread(target=lambda: blocks.append(scheduler.take(10)))
    waiting.start()
    scheduler.stop()
    waiting.join(30)
    assert blocks == [None]


def test_a_rollback_at_the_end_wakes_a_waiting_worker() -> None:
    scheduler = StepScheduler(0, 10, 1)
    scheduler.finish(take(scheduler, 10))
    assert scheduler.is_done
    blocks: list[StepRange | None] = []
    waiting = threading.Thread(target=lambda: blocks.append(scheduler.take(10)))
    waiting.start()
    scheduler.rollback(7)
    waiting.join(30)
    assert blocks == [StepRange(7, 3, 1)]
    assert not scheduler.is_done


def test_after_a_rollback_steps_are_repeated_and_earlier_blocks_do_not_count() -> None:
    scheduler = StepScheduler(100, 100, 1)
    scheduler.finish(take(scheduler, 40))
    under_way, failed = take(scheduler, 10), take(scheduler, 10)
    scheduler.rollback(120)
    assert scheduler.done == 20
    scheduler.finish(under_way)
    scheduler.requeue(failed)
    assert scheduler.done == 20
    again = take(scheduler, 1000)
    assert (again.first, again.count) == (120, 80)
    scheduler.finish(again)
    assert scheduler.done == 100
    assert scheduler.is_done


def test_a_rollback_goes_neither_forward_nor_before_the_start() -> None:
    scheduler = StepScheduler(100, 100, 1)
    scheduler.finish(take(scheduler, 10))
    scheduler.rollback(150)
    assert scheduler.done == 10
    scheduler.rollback(50)
    assert scheduler.done == 0


@pytest.mark.parametrize(
    ("count", "seconds", "expected"),
    [(8, 0.01, 32), (100, 0.3, 100), (100, 0.6, 50), (1, 5.0, 1), (8, 0.0, 32), (1000, 0.1, 3000)],
)
def test_blocks_grow_to_their_target_duration(count: int, seconds: float, expected: int) -> None:
    assert next_size(count, count, seconds, settings.TRAINING_CALL_SECONDS) == expected
