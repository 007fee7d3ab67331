"""What Ctrl-C means for a run and for a command on all hosts: which one ends the run, and none is lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.client import exec as client_exec
from tfcluster.client.cluster import Cluster
from tfcluster.client.exec import HostCommands
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


@contextlib.contextmanager
def run(monkeypatch: pytest.MonkeyPatch, script: str) -> Iterator[HostCommands]:
    """Run a script on two hosts, which are this machine."""
    lines = {host: ["sh", "-c", script] for host in ("alpha", "beta")}
    monkeypatch.setattr(client_exec, "map_hosts", lambda *arguments: (lines, {}))
    cluster: Any = type("Cluster", (), {"hosts": list(lines)})
    with HostCommands(cluster, []) as commands:
        yield commands
    for process in commands._processes.values():
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def test_the_first_interrupt_is_passed_on_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    previous = signal.getsignal(signal.SIGINT)
    with run(monkeypatch, "head -c 1 | od -An -tu1; exit 3") as commands:
        with commands.pass_interrupt():
            signal.raise_signal(signal.SIGINT)
            assert {(each.host, each.line.strip()) for each in commands.lines()} == {("alpha", "2"), ("beta", "2")}
        assert commands.is_interrupted
        assert commands.exit_code == 3
        with commands.pass_interrupt():
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is previous


def test_an_interrupt_that_does_not_end_the_wait_for_a_line_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may give a signal to another thread, or just before the wait: the wait for a line continues."""

    def interrupt() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with run(monkeypatch, "echo started; head -c 1 | od -An -tu1") as commands, commands.pass_interrupt():
        shown = []
        for each in commands.lines():
            shown.append(each.line.strip())
            if len(shown) == 2:
                threading.Timer(0.1, interrupt).start()
        assert sorted(shown) == ["2", "2", "started", "started"]


def test_a_command_that_a_signal_ends_has_the_exit_code_of_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    with run(monkeypatch, "kill -KILL $$") as commands:
        assert list(commands.lines()) == []
        assert commands.exit_code == 128 + signal.SIGKILL
