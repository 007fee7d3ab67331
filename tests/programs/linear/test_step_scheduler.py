"""Steps handed out in blocks: each exactly once, unless a worker or the variables are lost."""

from __future__ import annotations

import random
import threading

import pytest

from tfcluster import settings
from tfcluster.programs.linear.step_scheduler import StepRange, StepScheduler
from tfcluster.programs.scheduler import next_size


def take(ledger: StepScheduler, size: int) -> StepRange:
    block = ledger.take(size)
    assert block is not None
    return block


def test_every_step_is_handed_out_once() -> None:
    ledger = StepScheduler(100, 1000, 3)
    seen: list[int] = []
    choose = random.Random(5)
    while not ledger.is_done:
        block = take(ledger, choose.randint(1, 50))
        seen += range(block.first, block.first + block.count)
        ledger.finish(block)
    assert seen == list(range(100, 1100))
    assert ledger.done == ledger.steps == 1000


def test_a_block_is_at_most_a_fair_share_of_what_is_left() -> None:
    ledger = StepScheduler(0, 101, 4)
    ledger.finish(take(ledger, 1))
    assert [take(ledger, 1000).count for _ in range(4)] == [25, 19, 14, 11]


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_first_block_is_done_alone(is_lost: bool) -> None:
    ledger = StepScheduler(0, 100, 2)
    first = take(ledger, 10)
    found: list[StepRange | None] = []
    waiting = threading.Thread(target=lambda: found.append(ledger.take(10)))
    waiting.start()
    waiting.join(0.1)
    assert not found
    if is_lost:
        ledger.requeue(first)
    else:
        ledger.finish(first)
    waiting.join(30)
    assert found == [first if is_lost else StepRange(10, 10)]


def test_what_is_given_back_is_handed_out_again() -> None:
    ledger = StepScheduler(0, 10, 1)
    lost = take(ledger, 6)
    ledger.requeue(lost)
    assert ledger.done == 0
    first = take(ledger, 4)
    assert first == StepRange(0, 4)
    ledger.finish(first)
    assert take(ledger, 4) == StepRange(4, 2)
    assert take(ledger, 4) == StepRange(6, 4)


def test_a_worker_waits_for_what_another_might_give_back() -> None:
    ledger = StepScheduler(0, 10, 1)
    lost = take(ledger, 10)
    found: list[StepRange | None] = []
    waiting = threading.Thread(target=lambda: found.append(ledger.take(10)))
    waiting.start()
    ledger.requeue(lost)
    waiting.join(30)
    assert found == [lost]


@pytest.mark.parametrize("is_done", [False, True])
def test_a_worker_that_waits_is_told_of_the_end(is_done: bool) -> None:
    ledger = StepScheduler(0, 10, 1)
    block = take(ledger, 10)
    if is_done:
        ledger.finish(block)
    found: list[StepRange | None] = []
    waiting = threading.Thread(target=lambda: found.append(ledger.take(10)))
    waiting.start()
    ledger.stop()
    waiting.join(30)
    assert found == [None]


def test_a_worker_that_waits_does_what_a_setback_at_the_end_undoes() -> None:
    ledger = StepScheduler(0, 10, 1)
    ledger.finish(take(ledger, 10))
    assert ledger.is_done
    found: list[StepRange | None] = []
    waiting = threading.Thread(target=lambda: found.append(ledger.take(10)))
    waiting.start()
    ledger.rollback(7)
    waiting.join(30)
    assert found == [StepRange(7, 3, 1)]
    assert not ledger.is_done


def test_a_setback_has_steps_done_again_and_blocks_from_before_do_not_count() -> None:
    ledger = StepScheduler(100, 100, 1)
    ledger.finish(take(ledger, 40))
    under_way, failed = take(ledger, 10), take(ledger, 10)
    ledger.rollback(120)
    assert ledger.done == 20
    ledger.finish(under_way)
    ledger.requeue(failed)
    assert ledger.done == 20
    again = take(ledger, 1000)
    assert (again.first, again.count) == (120, 80)
    ledger.finish(again)
    assert ledger.done == 100
    assert ledger.is_done


def test_a_setback_never_goes_forward_nor_before_the_start() -> None:
    ledger = StepScheduler(100, 100, 1)
    ledger.finish(take(ledger, 10))
    ledger.rollback(150)
    assert ledger.done == 10
    ledger.rollback(50)
    assert ledger.done == 0


@pytest.mark.parametrize(
    ("count", "seconds", "expected"),
    [(8, 0.01, 32), (100, 0.3, 100), (100, 0.6, 50), (1, 5.0, 1), (8, 0.0, 32), (1000, 0.1, 3000)],
)
def test_blocks_grow_to_the_time_they_should_take(count: int, seconds: float, expected: int) -> None:
    assert next_size(count, count, seconds, settings.TRAINING_CALL_SECONDS) == expected
