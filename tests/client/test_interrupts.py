"""What Ctrl-C means for a run: which one ends it, and none is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.runs import interrupts
from tfcluster.client.runs.interrupts import GracefulInterrupt


class Interrupt(GracefulInterrupt):
    """Notes what is asked of a run: to be interrupted, or to be cancelled."""

    def __init__(self) -> None:
        super().__init__(Cluster("demo"), is_script=True)
        self.run = "launch-1"
        self.asked: list[str] = []

    def cancel(self, *, interrupt: bool = False) -> None:
        self.asked.append("interrupt" if interrupt else "cancel")


class User:
    """Types Ctrl-C at times of a clock, and sees events."""

    def __init__(self, interrupt: Interrupt) -> None:
        self.now = 1000.0
        self._interrupt = interrupt

    def types_ctrl_c(self, after: float) -> None:
        self.now += after
        signal.raise_signal(signal.SIGINT)

    def sees(self, event: str, after: float, **fields: Any) -> bool:
        """Whether an event is shown that arrives so many seconds later."""
        self.now += after
        return self._interrupt.on_event({"event": event, **fields})

    @property
    def asked(self) -> list[str]:
        self._interrupt.handle()
        return self._interrupt.asked


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    interrupt = Interrupt()
    with interrupt:
        made = User(interrupt)
        monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: made.now))
        yield made


LATE = settings.INTERRUPT_HANDLED_SECONDS


def test_the_interrupt_after_one_that_is_late_ends_the_run(user: User) -> None:
    user.types_ctrl_c(0.0)
    assert user.sees("interrupt", LATE, is_handled=False)
    assert user.asked == ["interrupt"]
    user.types_ctrl_c(2.0)
    assert user.asked == ["interrupt", "cancel"]


def test_a_second_interrupt_before_the_first_is_known_to_be_late_ends_the_run_then(user: User) -> None:
    user.types_ctrl_c(0.0)
    user.types_ctrl_c(0.5)
    assert user.asked == ["interrupt", "interrupt"]
    assert not user.sees("interrupt", 0.5, is_handled=False), "there is nothing left to type"
    assert user.asked == ["interrupt", "interrupt", "cancel"]


def test_of_two_interrupts_the_second_counts_though_the_event_is_late_too(user: User) -> None:
    user.types_ctrl_c(0.0)
    user.types_ctrl_c(0.1)
    assert not user.sees("interrupt", 1.5, is_handled=False)
    assert user.asked == ["interrupt", "interrupt", "cancel"]


def test_an_interrupt_that_was_handled_before_counts_for_nothing(user: User) -> None:
    user.types_ctrl_c(0.0)  # handled at once: no event says so
    user.types_ctrl_c(2.0)
    assert user.sees("interrupt", LATE, is_handled=False)
    assert user.asked == ["interrupt", "interrupt"]


@pytest.mark.parametrize("state", ["exited", "started"])
def test_a_member_that_is_restarted_is_not_late_any_more(user: User, state: str) -> None:
    user.types_ctrl_c(0.0)
    assert user.sees("interrupt", LATE, is_handled=False, task="worker:1")
    assert user.sees("member", 0.0, task="worker:1", state=state)
    user.types_ctrl_c(60.0)
    assert user.asked == ["interrupt", "interrupt"]
