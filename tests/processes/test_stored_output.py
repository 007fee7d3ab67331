"""The stored output of a run: its beginning and its end, what a reader is told is missing, and never zeros."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster.agent.handlers.runs import Output
from tfcluster.agent.logs.log_reader import RawOutput
from tfcluster.client.runs.requests import OutputLines, encode
from tfcluster.processes.runs import stored_output
from tfcluster.processes.runs.run_plan import OUTPUT, OUTPUT_INDEX
from tfcluster.processes.runs.stored_output import OutputRecorder, free_all, missing_bytes, stored_bytes

LIMIT = 400_000
Events = list[dict[str, Any]]


def line(number: int) -> bytes:
    return b"line %06d of the output\n" % number


def print_lines(recorder: OutputRecorder, numbers: range, lines_in_part: int = 50) -> bytes:
    """Print lines in parts that end within lines, as a pipe with a buffer does."""
    data = b"".join(map(line, numbers))
    size = lines_in_part * len(line(0)) + 5
    for start in range(0, len(data), size):
        recorder.append("stdout", data[start : start + size])
    return data


def read(output: Output) -> Events:
    async def collect() -> Events:
        return [each async for each in output.read_events()]

    return [*asyncio.run(collect()), *output.read_missing_end()]


def reader_of(folder: Path) -> RawOutput:
    return RawOutput(folder / OUTPUT, folder / OUTPUT_INDEX)


def logged(folder: Path, start: int = 0) -> list[bytes]:
    reader = reader_of(folder)
    return [each.text + b"\n" for each in reader.lines(start, reader.end(), partial=True)]


def refuse(fd: int, start: int, end: int) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.fixture(params=["holes", "none"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that can free ranges of files, and one that cannot."""
    if request.param == "none":
        monkeypatch.setattr(stored_output, "punch", refuse)


@pytest.mark.usefixtures("file_system")
@pytest.mark.parametrize("lines_in_part", [1, 50, 3000])
def test_the_beginning_and_the_end_are_stored_in_whole_lines(tmp_path: Path, lines_in_part: int) -> None:
    recorder = OutputRecorder(tmp_path, LIMIT)
    printed = print_lines(recorder, range(60_000), lines_in_part)
    assert stored_bytes(tmp_path) < LIMIT + 2 * lines_in_part * len(line(0)) + 30_000
    events = read(Output(tmp_path))
    (gap,) = [number for number, event in enumerate(events) if "missing" in event]
    head, tail = (b"".join(map(encode, part)) for part in (events[:gap], events[gap + 1 :]))
    assert printed.startswith(head)
    assert printed.endswith(tail)
    assert head.endswith(b"\n")
    assert tail.startswith(b"line ")
    assert len(head) > LIMIT // 4
    assert len(tail) > LIMIT // 40
    missing = events[gap]["missing"]
    assert len(head) + missing + len(tail) == len(printed)
    assert (
        events[gap]["data"] == "[tfcluster: 1 MiB of the output are not stored: `logs:` in the spec has the limits]\n"
    )
    assert abs(missing_bytes(tmp_path) - missing) < 10_000
    # And as a log.
    lines = logged(tmp_path)
    (gap,) = [number for number, text in enumerate(lines) if not text.startswith(b"line ")]
    assert lines[:gap] == [line(number) for number in range(gap)]
    assert lines[gap + 1 :] == [line(60_000 + number) for number in range(gap + 1 - len(lines), 0)]
    assert lines[gap].startswith(b"[tfcluster: 1 MiB of the output")


def test_less_than_the_limit_is_stored_as_it_is(tmp_path: Path) -> None:
    recorder = OutputRecorder(tmp_path, LIMIT)
    zeros = bytes(20_000)
    recorder.append("stdout", zeros)
    printed = print_lines(recorder, range(10_000))
    events = read(Output(tmp_path))
    assert b"".join(map(encode, events)) == zeros + printed
    assert missing_bytes(tmp_path) == 0
    assert b"".join(logged(tmp_path)) == zeros + printed


def test_output_without_lines(tmp_path: Path) -> None:
    recorder = OutputRecorder(tmp_path, LIMIT)
    for number in range(50_000):
        recorder.append("stderr", b"\rstep %06d" % number)
    assert stored_bytes(tmp_path) < LIMIT + 30_000
    events = read(Output(tmp_path))
    assert sum(event.get("missing", len(encode(event))) for event in events) == 12 * 50_000
    lines = OutputLines()
    shown = [part for event in [*events, {"event": "result"}] for part in lines.convert(event)]
    before, notice, after, _ = [part.get("line", "") for part in shown]
    assert before.startswith("\rstep 000000\rstep 000001")
    assert notice == events[next(number for number, event in enumerate(events) if "missing" in event)]["data"].rstrip()
    assert after.endswith("\rstep 049999")


def test_a_reader_continues_where_it_was(tmp_path: Path) -> None:
    recorder = OutputRecorder(tmp_path, LIMIT)
    printed = print_lines(recorder, range(60_000))
    events = read(Output(tmp_path))
    for number in range(0, len(events), 7):
        position = sum(event.get("missing", len(encode(event))) for event in events[:number])
        assert read(Output(tmp_path, position)) == events[number:]
    assert read(Output(tmp_path, len(printed))) == []


def test_a_reader_that_is_late_is_told_what_is_missing(tmp_path: Path) -> None:
    recorder = OutputRecorder(tmp_path, LIMIT)
    output = Output(tmp_path)
    total = 0
    for number in range(20):
        total += len(print_lines(recorder, range(5_000 * number, 5_000 * (number + 1))))
        events = read(output)
        assert b"\0" not in b"".join(encode(event) for event in events)
    assert output.position == total


def test_all_of_the_output_is_freed(tmp_path: Path) -> None:
    printed = print_lines(OutputRecorder(tmp_path, LIMIT), range(10_000))
    free_all(tmp_path)
    assert stored_bytes(tmp_path) < 10_000
    assert missing_bytes(tmp_path) == len(printed)
    assert [event["missing"] for event in read(Output(tmp_path))] == [len(printed)]
    assert len(logged(tmp_path)) == 1


START = 1_700_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time at which output is written."""
    clock = SimpleNamespace(now=START)
    clock.time = clock.monotonic = lambda: clock.now
    monkeypatch.setattr(stored_output, "time", clock)
    return clock


def times_of(folder: Path, *, since: float | None = None, until: float | None = None) -> list[tuple[bytes, float]]:
    """The lines of a run's log and their times, in seconds after the start."""
    reader = reader_of(folder)
    start = 0 if since is None else asyncio.run(reader.start_since(START + since))
    end = reader.end() if until is None else asyncio.run(reader.end_until(START + until))
    lines = reader.lines(start, end, partial=True)
    return [(each.text, round(each.time - START, 3)) for each in lines]


def test_each_line_has_the_time_at_which_it_was_written(tmp_path: Path, clock: SimpleNamespace) -> None:
    recorder = OutputRecorder(tmp_path)
    for seconds, stream, data in (
        (0.0, "stdout", b"one\ntwo\nthr"),
        (1.5, "stderr", b"ee"),
        (2.25, "stdout", b"\nfour\n"),
        (9.0, "stdout", b"five"),
    ):
        clock.now = START + seconds
        recorder.append(stream, data)
    lines = [(b"one", 0.0), (b"two", 0.0), (b"three", 2.25), (b"four", 2.25), (b"five", 9.0)]
    assert times_of(tmp_path) == lines
    # A line belongs to the time at which it was complete.
    for since, first in ((-1.0, 0), (0.0, 0), (0.001, 2), (2.25, 2), (2.5, 4), (9.0, 4), (9.5, 5)):
        assert times_of(tmp_path, since=since) == lines[first:], since
    for until, after in ((-1.0, 0), (0.0, 2), (1.9, 2), (2.25, 4), (8.0, 4), (9.0, 5)):
        assert times_of(tmp_path, until=until) == lines[:after], until
    assert [event["data"] for event in read(Output(tmp_path))] == ["one\ntwo\nthr", "ee", "\nfour\n", "five"]


def test_each_line_of_a_group_has_the_member_that_has_written_it(tmp_path: Path) -> None:
    recorder = OutputRecorder(tmp_path)
    for member, data in (("worker:0", b"one\ntwo\n"), ("worker:1", b"three\n"), ("", b"four\n"), ("worker:1", b"five")):
        recorder.append("stdout", data, task=member)
    reader = reader_of(tmp_path)
    lines = [(each.text, each.member) for each in reader.lines(0, reader.end(), partial=True)]
    assert lines == [
        (b"one", "worker:0"),
        (b"two", "worker:0"),
        (b"three", "worker:1"),
        (b"four", None),
        (b"five", "worker:1"),
    ]


@pytest.mark.usefixtures("file_system")
def test_the_times_of_what_is_stored_of_a_large_output(tmp_path: Path, clock: SimpleNamespace) -> None:
    recorder = OutputRecorder(tmp_path, LIMIT)
    for number in range(40_000):
        clock.now = START + number
        recorder.append("stdout", line(number), task="worker:0")
    lines = times_of(tmp_path)
    (gap,) = [number for number, (text, _) in enumerate(lines) if text.startswith(b"[tfcluster: ")]
    numbers = [int(text.split()[1]) for text, _ in lines[:gap] + lines[gap + 1 :]]
    times = [time for _, time in lines]
    assert times == sorted(times)
    edge = 4096 // len(line(0)) + 1  # what is left of a block of which the rest is freed has the times beside it
    assert times[: gap - edge] == numbers[: gap - edge]
    assert times[gap + 1 + edge :] == numbers[gap + edge :]
    for first in (numbers[gap // 2], numbers[gap + edge], numbers[gap + edge] + 1, 39_990):
        (text, time), *_ = times_of(tmp_path, since=first)
        assert (text + b"\n", time) == (line(first), first)
        (text, time) = times_of(tmp_path, until=first)[-1]
        assert (text + b"\n", time) == (line(first), first)
    reader = reader_of(tmp_path)
    start = asyncio.run(reader.start_of_last(40_000 - numbers[gap] + 3, reader.end(), partial=True))
    assert [text for text, _ in lines[gap - 2 : gap]] + [lines[gap][0]] == [
        each.text for each in list(reader.lines(start, reader.end(), partial=True))[:3]
    ]


def test_the_output_of_an_earlier_version_has_no_times(tmp_path: Path) -> None:
    (tmp_path / OUTPUT).write_bytes(b"one\ntwo\n")
    (tmp_path / OUTPUT_INDEX).write_bytes(b"stdout 0 4\nstderr 4 4 worker:0\n")
    os.utime(tmp_path / OUTPUT, (5.0, START + 7.0))
    lines = [(b"one", 7.0), (b"two", 7.0)]
    assert times_of(tmp_path) == times_of(tmp_path, since=50.0) == times_of(tmp_path, until=1.0) == lines
    assert read(Output(tmp_path)) == [
        {"event": "output", "stream": "stdout", "data": "one\n"},
        {"event": "output", "stream": "stderr", "task": "worker:0", "data": "two\n"},
    ]
