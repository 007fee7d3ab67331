"""The output of a task from its capture buffer to numbered files: bounded, nothing is lost or duplicated."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.processes.test_run_driver import files_up_to
from tfcluster import settings
from tfcluster.processes.logs import log_buffer, rotating_log
from tfcluster.processes.logs.log_buffer import LogBuffer, prepare, size_of
from tfcluster.processes.logs.log_writer import LogWriter
from tfcluster.processes.logs.rotating_log import LineLog, RotatingLog, end_of, files_of, parse

NOON = 1795262400.25


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """A capture buffer, created as for a first start, and the log that it goes to."""
    log = tmp_path / "logs" / "worker:0.log"
    log.parent.mkdir()
    prepare(tmp_path / "log-buffers" / "worker:0", log)
    return tmp_path / "log-buffers" / "worker:0", log


def put(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def drain(buffered: LogBuffer, *, ended: bool = False) -> None:
    while buffered.drain(ended=ended):
        continue


def texts(log: Path) -> list[bytes]:
    """The text of each line in a log's files, whose positions are checked to be without gap."""
    lines = [parse(line) for path in files_of(log) for line in path.read_bytes().splitlines()]
    entries = [line for line in lines if line is not None]
    assert len(entries) == len(lines)
    for one, other in pairwise(entries):
        assert one.next_offset == other.position
    return [line.text for line in entries]


def test_lines_have_a_time_and_a_position(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", 1000, 2)
    log.append(b"one\n\n\xff two\n", 7, NOON)
    log.append(b"a beginning", 18, NOON + 1)
    assert (tmp_path / "log").read_bytes() == (
        b"2026-11-21T12:00:00.250Z 7 one\n2026-11-21T12:00:00.250Z 11 \n"
        b"2026-11-21T12:00:00.250Z 12 \xff two\n2026-11-21T12:00:01.250Z 18+ a beginning\n"
    )
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    assert end_of(tmp_path / "log") == log.recover() == 29
    line = parse(b"2026-11-21T12:00:00.250Z 12 \xff two")
    assert line == rotating_log.Line(NOON, 12, b"\xff two", 18)
    assert parse(b"a user's own words") is None


def test_files_are_numbered_from_the_newest_and_none_is_too_long(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", 100, 3)
    for number in range(20):
        log.append(b"line %02d\n" % number, 8 * number, NOON)
    assert [path.name for path in files_of(tmp_path / "log")] == ["log.2", "log.1", "log"]
    assert all(path.stat().st_size <= 100 for path in files_of(tmp_path / "log"))
    assert texts(tmp_path / "log") == [b"line %02d" % number for number in range(14, 20)]
    log.append(b"x" * 500 + b"\nafter\n", 160, NOON)
    assert [len(path.read_bytes().splitlines()) for path in files_of(tmp_path / "log")][-2:] == [1, 1]


def test_a_lower_limit_deletes_files_and_one_file_is_replaced(tmp_path: Path) -> None:
    RotatingLog(tmp_path / "log", 50, 5).append(b"".join(b"line %d\n" % number for number in range(9)), 0, NOON)
    assert len(files_of(tmp_path / "log")) == 5
    assert RotatingLog(tmp_path / "log", 50, 2).recover() == 63
    assert texts(tmp_path / "log") == [b"line 7", b"line 8"]
    log = RotatingLog(tmp_path / "log", 50, 1)
    log.append(b"line 9\nline 10\n", log.recover(), NOON)
    assert files_of(tmp_path / "log") == [tmp_path / "log"]
    assert texts(tmp_path / "log") == [b"line 10"]


def test_a_partial_line_stays_in_the_buffer(paths: tuple[Path, Path]) -> None:
    path, log = paths
    buffered = LogBuffer(path, RotatingLog(log, 1000, 2))
    put(path, b"one\nha")
    drain(buffered)
    assert texts(log) == [b"one"]
    put(path, b"lf\nlast words")
    drain(buffered)
    assert texts(log) == [b"one", b"half"]
    drain(buffered, ended=True)
    assert texts(log) == [b"one", b"half", b"last words"]


def test_a_line_that_is_too_long_is_stored_as_several(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LOG_LINE_MAX_BYTES", 10)
    path, log = paths
    put(path, b"0123456789" * 3 + b"ab\nnext\n")
    drain(LogBuffer(path, RotatingLog(log, 1000, 2)))
    assert texts(log) == [*[b"0123456789"] * 3, b"ab", b"next"]


def test_positions_continue_in_a_recreated_and_in_a_truncated_buffer(paths: tuple[Path, Path]) -> None:
    path, log = paths
    put(path, b"one\ntwo\n")
    drain(LogBuffer(path, RotatingLog(log, 1000, 2)))
    prepare(path, log)  # for the next process of a task: it is there
    assert path.read_bytes() == b"one\ntwo\n"
    path.unlink()
    prepare(path, log)
    assert size_of(path) == 8
    put(path, b"three, a long line\n")
    buffered = LogBuffer(path, RotatingLog(log, 1000, 2))
    drain(buffered)
    path.write_bytes(b"hi\n")
    drain(buffered)
    put(path, b"after\n")
    drain(buffered)
    assert texts(log) == [b"one", b"two", b"three, a long line", b"hi", b"after"]


def failing(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, fail: Callable[..., Any]) -> None:
    real, calls = getattr(module, name), []

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            fail(real, *arguments)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize("where", ["write", "replace"])
def test_a_writer_that_is_interrupted_loses_and_duplicates_nothing(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path, log = paths
    printed = [b"line %03d" % number for number in range(40)]
    put(path, b"".join(line + b"\n" for line in printed))
    buffered = LogBuffer(path, RotatingLog(log, 300, 100))
    if where == "write":
        failing(monkeypatch, os, "write", lambda real, fd, data: real(fd, data[:50]))
    else:
        failing(monkeypatch, Path, "replace", lambda real, *arguments: None)
    with pytest.raises(OSError, match="No space left"):
        drain(buffered)
    assert end_of(log) < path.stat().st_size
    drain(buffered)
    assert texts(log) == printed


def test_lines_that_do_not_fit_on_the_disk_follow_when_they_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "LOG_UNWRITTEN_MAX", 3)
    path = tmp_path / "events.log"
    log = LineLog(path)
    log.append(b"first\n", NOON)
    with files_up_to(path.stat().st_size + 30):  # a part of the next line fits
        for number in range(5):
            log.append(b"line %d\n" % number, NOON + number)
    log.append(b"last\n", NOON + 9)
    assert texts(path) == [b"first", b"line 3", b"line 4", b"last"]
    times = [line.time for line in map(parse, path.read_bytes().splitlines()) if line is not None]
    assert times == [NOON, NOON + 3, NOON + 4, NOON + 9]


def test_copied_output_is_freed_and_positions_do_not_change(paths: tuple[Path, Path]) -> None:
    path, log = paths
    buffered = LogBuffer(path, RotatingLog(log, 1 << 20, 3))
    for _ in range(20):
        put(path, b"x" * 99 + b"\n" * 1 + (b"y" * 99 + b"\n") * 9999)
        drain(buffered)
    assert size_of(path) == 20_000_000
    assert path.stat().st_blocks * 512 < 1_000_000
    assert sum(each.stat().st_blocks * 512 for each in files_of(log)) <= 3 << 20
    assert log_buffer.read(path, 19_999_900, 1000) == (b"y" * 99 + b"\n", path.stat().st_mtime)
    assert log_buffer.read(path, 0, 1000) is None
    assert texts(log)[-1] == b"y" * 99


def test_output_beyond_the_capacity_of_the_log_is_skipped(paths: tuple[Path, Path]) -> None:
    path, log = paths
    put(path, b"".join(b"line %06d\n" % number for number in range(100_000)))
    drain(LogBuffer(path, RotatingLog(log, 1000, 3)))
    entries = texts(log)
    assert entries == [b"line %06d" % number for number in range(100_000)][-len(entries) :]
    assert 40 < len(entries) < 100


def test_the_buffer_is_truncated_where_holes_are_not_supported(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, start: int, end: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(log_buffer, "punch", refuse)
    path, log = paths
    put(path, (b"y" * 99 + b"\n") * 10_000)
    drain(LogBuffer(path, RotatingLog(log, 1 << 20, 3)))
    assert size_of(path) == 1_000_000
    assert path.stat().st_blocks == 0
    put(path, b"after\n")
    drain(LogBuffer(path, RotatingLog(log, 1 << 20, 3)))
    assert texts(log)[-2:] == [b"y" * 99, b"after"]


def test_the_next_log_writer_continues(tmp_path: Path, paths: tuple[Path, Path]) -> None:
    path, log = paths
    for number in range(3):
        put(path, b"line %d\nand" % number)
        writer = LogWriter(path.parent, log.parent, 1000, 3)
        while writer.drain_once():
            continue
        writer._lock.close()  # as at the end of its process
    assert texts(log) == [b"line 0", b"andline 1", b"andline 2"]
    LogWriter(path.parent, log.parent, 1000, 3).close()
    assert texts(log)[-1] == b"and"
    assert not path.parent.exists()


def test_output_that_cannot_be_written_stays_in_the_buffer_and_does_not_block_the_end(
    paths: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = paths
    put(path, b"one\n")
    log.mkdir()
    writer = LogWriter(path.parent, log.parent, 1000, 3)
    assert not writer.drain_once()
    assert not writer.drain_once()
    assert writer.is_failing
    assert capsys.readouterr().err.count("worker:0: cannot write its output: ") == 1
    log.rmdir()
    while writer.drain_once():
        continue
    assert (texts(log), writer.is_failing) == ([b"one"], False)
    put(path, b"two\n")
    log.unlink()
    log.mkdir()
    writer.close()
    assert not path.parent.exists()
