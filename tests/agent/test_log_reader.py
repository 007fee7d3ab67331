"""A task's log as one stream of lines, read by position while the log writer moves them from the buffer to files."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tfcluster import settings
from tfcluster.agent.logs.log_reader import RotatedLog, TaskLog
from tfcluster.agent.logs.sorted_lines import SortedLines
from tfcluster.agent.logs.tail import tail
from tfcluster.processes.logs.log_buffer import LogBuffer, prepare
from tfcluster.processes.logs.rotating_log import RotatingLog, files_of, parse


class Task:
    """A task's spool and log, and a reader of both."""

    def __init__(self, folder: Path, size: int, count: int) -> None:
        self.log, self.log_buffer = folder / "logs" / "worker:0.log", folder / "log-buffers" / "worker:0"
        self.log.parent.mkdir(parents=True)
        self.size, self.count = size, count
        self.printed = b""
        self.start()
        self.restart_keeper()
        self.stream = TaskLog(self.log, self.log_buffer)

    def start(self) -> None:
        prepare(self.log_buffer, self.log)

    def restart_keeper(self) -> None:
        self.writer = LogBuffer(self.log_buffer, RotatingLog(self.log, self.size, self.count))

    def print(self, data: bytes) -> None:
        with self.log_buffer.open("ab") as file:
            file.write(data)
        self.printed += data

    def end(self) -> None:
        """End it, as `down` does."""
        while self.writer.drain(ended=True):
            continue
        self.log_buffer.unlink()

    def all(self, start: int = 0, *, partial: bool = True) -> list[bytes]:
        return [line.text for line in self.stream.lines(start, self.stream.end(), partial=partial)]

    def last(self, count: int, *, partial: bool = True) -> list[bytes]:
        end = self.stream.end()
        return self.all(asyncio.run(self.stream.start_of_last(count, end, partial=partial)), partial=partial)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A task whose log files take about four lines of `lines`."""
    return Task(tmp_path, 180, 4)


def lines(*numbers: int) -> bytes:
    return b"".join(b"line %03d\n" % number for number in numbers)


def texts(*numbers: int) -> list[bytes]:
    return lines(*numbers).splitlines()


def split(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n") if data else []


_PRINTED = st.lists(
    st.sampled_from(
        [b"\n", b"a", b"bc\n", b"\xff", b"\r\n", b" ", b"x" * 5000, b"y" * 3000 + b"\n", lines(*range(50))]
    ),
    max_size=6,
).map(b"".join)
_STEPS = st.lists(st.one_of(_PRINTED, st.sampled_from(["keep", "restart", "follow"])), max_size=20)
_NUMBERS = itertools.count()


@hypothesis_settings(max_examples=60)
@given(steps=_STEPS, size=st.sampled_from([100, 5000, 10**6]), count=st.integers(0, 12))
def test_all_printed_lines_are_read_wherever_they_are_stored(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str], size: int, count: int
) -> None:
    task = Task(tmp_path_factory.getbasetemp() / f"stream{next(_NUMBERS)}", size, 10**6)
    followed: list[bytes] = []
    place = 0
    with mock.patch.multiple(settings, LOG_BUFFER_KEPT_BYTES=0, LOG_BUFFER_FREED_BYTES=1):
        for step in steps:
            if isinstance(step, bytes):
                task.print(step)
            elif step == "keep":
                task.writer.drain()
            elif step == "restart":
                task.restart_keeper()
            else:
                for line in task.stream.lines(place, task.stream.end(), partial=False):
                    followed.append(line.text)
                    place = line.next_offset
        followed += task.all(place)
        whole = split(task.printed)
        assert followed == task.all() == whole
        assert task.last(count) == whole[len(whole) - min(count, len(whole)) :]
        ended = task.printed[: task.printed.rfind(b"\n") + 1]
        assert task.all(partial=False) == split(ended)
        assert task.last(count, partial=False) == split(ended)[len(split(ended)) - min(count, len(split(ended))) :]
        task.end()
        assert task.all() == whole
        assert task.last(count) == whole[len(whole) - min(count, len(whole)) :]
        assert task.stream.end() == len(task.printed)


async def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    stream = TaskLog(tmp_path / "logs" / "no:0.log", tmp_path / "log-buffers" / "no:0")
    assert stream.end() == await stream.start_since(5.0) == await stream.start_of_last(3, 0, partial=True) == 0
    assert list(stream.lines(0, 0, partial=True)) == []
    assert tail(tmp_path / "log", 5) == ([], 0)


def test_a_reader_slower_than_the_rotation_continues_with_the_remaining_lines(task: Task) -> None:
    task.print(lines(*range(8)))
    task.writer.drain()
    reading = task.stream.lines(0, 10**6, partial=False)
    assert [next(reading).text for _ in range(2)] == texts(0, 1)
    task.print(lines(*range(8, 100)))
    task.writer.drain()
    # What it has open it still reads, then what is there by now.
    rest = [line.text for line in reading]
    assert rest[:6] == texts(*range(2, 8))
    assert rest[6:] == texts(*range(8, 100))[-len(rest[6:]) :]
    assert rest[-1] == b"line 099"


def test_files_renamed_while_they_are_opened_are_all_found(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    task.print(lines(*range(9)))
    task.writer.drain()
    assert len(files_of(task.log)) == 3
    real, opened = Path.open, []

    def rotate_meanwhile(path: Path, *arguments: object, **options: object) -> object:
        file = real(path, *arguments, **options)  # type: ignore[call-overload]
        if path.parent == task.log.parent and arguments == ("rb",):
            opened.append(path.name)
            if len(opened) == 1:
                task.print(lines(*range(9, 13)))
                monkeypatch.undo()
                task.writer.drain()
                monkeypatch.setattr(Path, "open", rotate_meanwhile)
        return file

    monkeypatch.setattr(Path, "open", rotate_meanwhile)
    lines_read = [line.text for line in task.stream.lines(0, 10**6, partial=False)]
    assert opened[0] == "worker:0.log"
    assert lines_read == texts(*range(13))


def test_lines_since_a_time(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", 100, 99)
    place = 0
    for number in range(20):
        log.append(lines(number), place, 1000.0 + number)
        place += 9
    stream = RotatedLog(tmp_path / "log")

    def since(time: float) -> list[bytes]:
        return [line.text for line in stream.lines(asyncio.run(stream.start_since(time)), stream.end(), partial=True)]

    assert since(0.0) == texts(*range(20))
    assert since(1006.0) == texts(*range(6, 20))
    assert since(1006.5) == texts(*range(7, 20))
    assert since(1019.0) == texts(19)
    assert since(1019.5) == []
    start = asyncio.run(stream.start_since(1018.0))
    assert [line.time for line in stream.lines(start, place, partial=True)] == [1018.0, 1019.0]


def test_foreign_lines_in_a_log_are_skipped(task: Task) -> None:
    task.print(lines(0, 1))
    task.writer.drain()
    with task.log.open("ab") as file:
        file.write(b"another program wrote this\n")
    task.restart_keeper()
    task.print(lines(2, 3))
    task.writer.drain()
    assert task.all() == texts(0, 1, 2, 3)
    assert task.all(18) == texts(2, 3)


def test_the_end_of_a_file_that_is_emptied_while_it_is_read_is_not_waited_for(tmp_path: Path) -> None:
    task = Task(tmp_path, 10**6, 4)
    count = settings.IO_BLOCK_BYTES // len(lines(0)) * 2
    task.print(b"".join(b"line %08d\n" % number for number in range(count)))
    while task.writer.drain():
        continue
    reading = task.stream.lines(0, task.stream.end(), partial=False)
    assert next(reading).text == b"line 00000000"
    os.truncate(task.log, 0)  # as a user does whose disk is full
    assert len(list(reading)) < count
    with task.log.open("rb", buffering=0) as file:
        lines_of_file = SortedLines(file.fileno(), 1000, parse)  # as measured before
        assert lines_of_file.line_from(500) is None


def test_no_descriptor_is_left_open(task: Task) -> None:
    before = os.listdir("/proc/self/fd")
    task.print(lines(*range(20)))
    task.writer.drain()
    task.all()
    task.last(3)
    with closing(task.stream.lines(0, 10**6, partial=False)) as reading:
        assert next(reading).text
    assert os.listdir("/proc/self/fd") == before


def test_only_as_much_is_read_as_the_lines_need(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 35)  # a hole of 32 GiB
        file.seek(0, 2)
        file.write(b"\na\nb\n")
    assert tail(path, 2) == (["a", "b"], (1 << 35) + 5)


_CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc", "é".encode(), b"\xff", b"\r", b"\r\n", b"\x0c", b" "])).map(
    b"".join
)


@hypothesis_settings(max_examples=200)
@given(content=_CONTENT, lines=st.integers(0, 12), block=st.integers(1, 9))
def test_the_last_lines_are_split_at_newlines(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, lines: int, block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "newlines.log"
    path.write_bytes(content)
    with mock.patch.object(settings, "IO_BLOCK_BYTES", block):
        expected = tail(path, lines)
    all_lines = [line.decode(errors="replace") for line in content.removesuffix(b"\n").split(b"\n")] if content else []
    assert expected == (all_lines[len(all_lines) - min(lines, len(all_lines)) :], len(content))
