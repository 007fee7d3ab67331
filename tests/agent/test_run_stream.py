"""A run's events and output in the order in which they were written, from any of them on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.agent.runs.stream import skip, stream_files

Events = list[dict[str, Any]]


def event(word: str, **fields: Any) -> bytes:
    return json.dumps({"event": word, **fields}).encode() + b"\n"


def output(*lines: str) -> Events:
    return [{"event": "output", "line": line} for line in lines]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "events.jsonl", tmp_path / "output.log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def follow_steps(events: Path, printed: Path | None, *steps: Callable[[], None]) -> Events:
    """What is followed while a run that takes these steps goes on, one whenever there is nothing left to read."""
    remaining_steps = list(steps)

    async def wait() -> None:
        remaining_steps.pop(0)()

    async def collect() -> Events:
        return [each async for each in stream_files(events, printed, lambda: bool(remaining_steps), wait)]

    return asyncio.run(collect())


def test_events_come_as_they_are_written_and_the_result_last(files: tuple[Path, Path]) -> None:
    events, _ = files
    stream_events = follow_steps(
        events,
        None,
        lambda: append(events, event("run") + b'{"event": "prog'),
        lambda: append(events, b'ress"}\n'),
        lambda: append(events, event("result")),
        lambda: append(events, event("late")),
    )
    assert [each["event"] for each in stream_events] == ["run", "progress", "late", "result"]


def test_output_precedes_the_events_that_follow_it(files: tuple[Path, Path]) -> None:
    events, printed = files

    def print_and_emit() -> None:
        append(printed, b"two\nthr")
        append(events, event("metric"))

    def end() -> None:
        append(events, event("result"))
        append(printed, b"ee\nno newline \xff")

    stream_events = follow_steps(events, printed, lambda: append(printed, b"one\n"), print_and_emit, end)
    assert stream_events == [
        *output("one", "two"),
        {"event": "metric"},
        *output("three", "no newline \ufffd"),
        {"event": "result"},
    ]


def test_the_run_event_comes_first(files: tuple[Path, Path]) -> None:
    events, printed = files
    append(events, event("run") + event("result"))
    append(printed, b"one\n")
    assert follow_steps(events, printed) == [{"event": "run"}, *output("one"), {"event": "result"}]


def test_a_truncated_event_is_skipped(files: tuple[Path, Path]) -> None:
    events, _ = files
    append(events, event("run") + b'{"event": "progr\n' + event("result"))
    assert [each["event"] for each in follow_steps(events, None)] == ["run", "result"]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17])
def test_a_long_line_comes_in_the_same_pieces_however_it_is_read(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(settings, "RUN_OUTPUT_LINE_MAX_BYTES", 8)
    events, printed = files
    line = b"x" * size + b"\n"
    steps = [lambda each=each: append(printed, bytes([each])) for each in line + b"end\n"]
    bit_by_bit = follow_steps(events, printed, *steps)
    assert follow_steps(events, printed) == bit_by_bit
    assert "".join(each["line"] for each in bit_by_bit) == "x" * size + "end"
    assert max(len(each["line"]) for each in bit_by_bit) <= 8


def test_missing_files_are_empty(files: tuple[Path, Path]) -> None:
    assert follow_steps(*files) == []


def test_a_client_that_reconnects_receives_each_event_once() -> None:
    whole: Events = [{"event": "run"}, *output("a"), {"event": "metric"}, *output("b", "c"), {"event": "result"}]

    async def rest(events: int, lines: int) -> Events:
        async def messages() -> Any:
            for each in whole:
                yield each

        return [each async for each in skip(messages(), events, lines)]

    for had in range(len(whole) + 1):
        lines = sum(each["event"] == "output" for each in whole[:had])
        assert asyncio.run(rest(had - lines, lines)) == whole[had:]
