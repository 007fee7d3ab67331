"""The coordinator of a group: its hosts are played, the lines of members stay whole, and its error has a hint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import SCRIPTS, Command, running, wait_for
from tfcluster import settings
from tfcluster.core.groups import Member
from tfcluster.errors import ExitCode
from tfcluster.processes.groups import driver
from tfcluster.processes.groups.coordinator import describe_failure
from tfcluster.processes.groups.driver import LineBuffer
from tfcluster.processes.groups.host import IdleMembers
from tfcluster.processes.groups.link import Exited, GroupLink, Ports, Reserve, Start, Started, Stop, connect
from tfcluster.processes.runs.run_plan import EVENTS
from tfcluster.transport.channel import readable_fds

SECRET = "ab" * 32


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / EVENTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def next_orders(link: GroupLink) -> list[Any] | None:
    """The next orders, which must arrive in a minute; None if the connection is closed."""
    assert readable_fds([link.fileno()], 60), "no order has arrived"
    return link.receive()


@contextmanager
def coordinating(folder: Path, max_restarts: int) -> Iterator[tuple[Command, list[GroupLink]]]:
    """A coordinator, and the links of its two hosts, which have reserved a port for their member each."""
    script = str(SCRIPTS / "coordinates.py")
    with running(sys.executable, script, str(folder), str(max_restarts), SECRET) as process:
        wait_for(lambda: events(folder))
        links = [connect(events(folder)[0]["address"], SECRET, host) for host in ("beta", "gamma")]
        for port, link in enumerate(links, 1):
            assert next_orders(link) == [Reserve()]
            link.send(Ports([port]))
        for link in links:
            assert next_orders(link) == [Start(0, {"worker": ["127.0.0.1:1", "127.0.0.1:2"]})]
        yield process, links
        for link in links:
            link.close()


def test_members_that_were_told_to_start_are_stopped_if_a_host_is_lost_before_they_have(tmp_path: Path) -> None:
    """They would otherwise run beside those of the next attempt."""
    with coordinating(tmp_path, max_restarts=1) as (_, (beta, gamma)):
        beta.close()
        [order] = next_orders(gamma) or []
        assert isinstance(order, Stop)


def test_a_host_that_is_lost_comes_first_in_the_error(tmp_path: Path) -> None:
    """TensorFlow notices the loss first, so that another member has failed of it before."""
    with coordinating(tmp_path, max_restarts=0) as (process, (beta, gamma)):
        for rank, link in enumerate((beta, gamma)):
            link.send(Started(rank, 100 + rank))
        beta.send(Exited(0, 1, "UnavailableError: Socket closed", was_idle=False))
        assert isinstance((next_orders(gamma) or [None])[0], Stop)
        gamma.close()
        assert process.wait(60) == ExitCode.UNREACHABLE
    error = events(tmp_path)[-1]["error"]
    assert error["exit_code"] == ExitCode.UNREACHABLE
    first, after, *_ = error["message"].splitlines()
    assert first == "the connection to host gamma is lost"
    assert after.startswith("after that, worker:0 on beta failed: UnavailableError: Socket closed")


Parts = list[tuple[str, bytes, str]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still unless a test moves it."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(driver, "time", clock)
    return clock


@pytest.fixture
def written() -> Parts:
    """What was passed on: the stream, the data and the task."""
    return []


@pytest.fixture
def buffer(written: Parts, clock: SimpleNamespace) -> LineBuffer:
    """A buffer that passes on to `written`."""
    return LineBuffer(lambda stream, data, task: written.append((stream, data, task)))


def test_pieces_of_lines_that_arrive_in_turn_are_not_mixed(buffer: LineBuffer, written: Parts) -> None:
    for piece in (b"step", b" ", b"1", b"\nste", b"p 2\n"):
        buffer.add("stdout", piece, "worker:0")
        buffer.add("stdout", piece, "worker:1")
        buffer.add("stderr", piece, "worker:1")
    sources = [("stdout", "worker:0"), ("stdout", "worker:1"), ("stderr", "worker:1")]
    assert written == [(stream, line, task) for line in (b"step 1\n", b"step 2\n") for stream, task in sources]
    assert buffer.seconds_left() == float("inf")


def test_a_prompt_and_a_bar_appear_soon(buffer: LineBuffer, written: Parts, clock: SimpleNamespace) -> None:
    buffer.add("stdout", b"done\nname? ", "worker:0")
    assert buffer.seconds_left() == settings.GROUP_LINE_SECONDS
    clock.now += settings.GROUP_LINE_SECONDS / 2
    buffer.add("stdout", b"\r 10 %", "worker:0")
    buffer.pass_on()
    assert [data for _, data, _ in written] == [b"done\n"]
    clock.now += settings.GROUP_LINE_SECONDS / 2
    assert buffer.seconds_left() == 0
    buffer.pass_on()
    assert [data for _, data, _ in written] == [b"done\n", b"name? \r 10 %"]


def test_nothing_is_kept_of_who_has_exited_nor_at_the_end(buffer: LineBuffer, written: Parts) -> None:
    for task in ("worker:0", "worker:1"):
        buffer.add("stdout", b"no newline", task)
        buffer.add("stderr", b"nor here", task)
    buffer.pass_on("worker:1")
    assert [task for _, _, task in written] == ["worker:1", "worker:1"]
    buffer.close()
    assert len(written) == 4


def test_a_very_long_line_is_passed_on(buffer: LineBuffer, written: Parts) -> None:
    buffer.add("stdout", b"x" * (settings.LOG_LINE_MAX_BYTES + 1), "worker:0")
    assert len(written) == 1


MEMBER = Member("worker", 0, 0, "localhost", "localhost")


def hint_of(failure: str, hint: str = "") -> str:
    report = Exited(rank=0, exit_code=1, failure=failure, was_idle=False, hint=hint)
    return describe_failure(MEMBER, report, [], [], interrupted=False).error.hint


def test_fit_of_keras_3_has_a_hint() -> None:
    assert "pip install tf_keras" in hint_of("ValueError: Attempt to convert a value (PerReplica:{")
    assert hint_of("ValueError: no data") == ""


def test_the_hint_of_a_member_is_that_of_the_group() -> None:
    assert hint_of("ModuleNotFoundError: No module named 'pandaz'", "Install it.") == "Install it."


# The beginning of a program: it computes for a tenth of a second, and says so.
_BEGIN = """
import time
def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
compute(0.1)
print("has computed", flush=True)
"""
_COMPUTE = f"{_BEGIN}while True:\n    compute(0.02)\n    time.sleep(0.1)\n"
_HAVE_A_CHILD_COMPUTE = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_COMPUTE!r}])"


@contextmanager
def member(program: str) -> Iterator[int]:
    """A process that has computed, with a process group of its own, as members are."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"has computed\n"
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_only_members_that_do_not_compute_are_idle() -> None:
    members = IdleMembers()
    with ExitStack() as stack:
        programs = (_COMPUTE, _HAVE_A_CHILD_COMPUTE, f"{_BEGIN}time.sleep(1000)")
        pids = [stack.enter_context(member(program)) for program in programs]
        members.watch(dict(enumerate(pids)), 1.0)
        assert wait_for(members.take_idle) == [2]
        assert members.seconds_left() > 0
        assert [members.forget(rank) for rank in range(3)] == [False, False, True]
    assert members.seconds_left() == float("inf")
