"""The lines of a group's members stay whole in the stored output, however the pieces arrive."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tfcluster import settings
from tfcluster.processes.groups import coordinator
from tfcluster.processes.groups.coordinator import LineBuffer

Parts = list[tuple[str, bytes, str]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still unless a test moves it."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(coordinator, "time", clock)
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
