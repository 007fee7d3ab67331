"""A command on all hosts: an interrupt loses none of what the commands tell, and a signal is an exit code."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tfcluster.client import exec as client_exec
from tfcluster.client.exec import HostCommands


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
    """The kernel may give a signal to another thread, or just before the wait: the wait for a line goes on."""

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
