"""A run's events and output in the order in which they were written, from any of them on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.processes.test_run_driver import files_up_to
from tfcluster.agent.handlers.runs import Output, _late_devices, skip, stream_files
from tfcluster.client.runs.requests import encode
from tfcluster.core.devices import Device, select
from tfcluster.core.runs import RunOptions
from tfcluster.processes.runs.run_plan import OUTPUT, OUTPUT_INDEX
from tfcluster.processes.runs.stored_output import OutputRecorder

Events = list[dict[str, Any]]


def event(word: str, **fields: Any) -> bytes:
    return json.dumps({"event": word, **fields}).encode() + b"\n"


def output(*parts: str, stream: str = "stdout") -> Events:
    return [{"event": "output", "stream": stream, "data": part} for part in parts]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, OutputRecorder]:
    return tmp_path / "events.jsonl", OutputRecorder(tmp_path)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def follow_steps(events: Path, folder: Path | None, *steps: Callable[[], None]) -> Events:
    """What is followed while a run that takes these steps goes on, one whenever there is nothing left to read."""
    remaining_steps = list(steps)

    async def wait() -> None:
        remaining_steps.pop(0)()

    async def collect() -> Events:
        output = None if folder is None else Output(folder)
        return [each async for each in stream_files(events, output, lambda: bool(remaining_steps), wait)]

    return asyncio.run(collect())


def test_events_come_as_they_are_written_and_the_result_last(files: tuple[Path, OutputRecorder]) -> None:
    events, _ = files
    found = follow_steps(
        events,
        None,
        lambda: append(events, event("run") + b'{"event": "prog'),
        lambda: append(events, b'ress"}\n{"event": "truncated\n'),
        lambda: append(events, event("result")),
        lambda: append(events, event("late")),
    )
    assert [each["event"] for each in found] == ["run", "progress", "late", "result"]


def test_output_comes_byte_by_byte_and_before_the_events_that_follow_it(files: tuple[Path, OutputRecorder]) -> None:
    events, recorder = files

    def print_and_emit() -> None:
        recorder.append("stdout", b"10 %\r")
        recorder.append("stderr", b"two \xc3")
        append(events, event("metric"))

    def end() -> None:
        append(events, event("result"))
        recorder.append("stderr", b"\xa9\xff")

    found = follow_steps(events, events.parent, lambda: recorder.append("stdout", b"one\n"), print_and_emit, end)
    assert found == [
        *output("one\n", "10 %\r"),
        *output("two \udcc3", stream="stderr"),
        {"event": "metric"},
        *output("\udca9\udcff", stream="stderr"),
        {"event": "result"},
    ]
    assert b"".join(encode(each) for each in found if each["event"] == "output") == b"one\n10 %\rtwo \xc3\xa9\xff"
    assert (events.parent / "output.log").read_bytes() == b"one\n10 %\rtwo \xc3\xa9\xff"


def test_the_run_event_comes_first_and_missing_files_are_empty(files: tuple[Path, OutputRecorder]) -> None:
    events, recorder = files
    assert follow_steps(events.parent / "none", events.parent / "none") == []
    append(events, event("run") + event("result"))
    recorder.append("stdout", b"one\n")
    assert follow_steps(events, events.parent) == [{"event": "run"}, *output("one\n"), {"event": "result"}]


def test_a_task_that_is_down_is_told_before_what_tensorflow_prints_about_it(files: tuple[Path, OutputRecorder]) -> None:
    events, recorder = files

    def lose_task() -> None:
        recorder.append("stderr", b"UnavailableError\n")
        append(events, event("metric") + event("result") + event("task_down") + event("metric"))

    found = follow_steps(events, events.parent, lose_task)
    assert found == [
        {"event": "metric"},
        {"event": "task_down"},
        *output("UnavailableError\n", stream="stderr"),
        {"event": "metric"},
        {"event": "result"},
    ]


def test_output_that_a_full_disk_has_truncated_does_not_damage_the_next(files: tuple[Path, OutputRecorder]) -> None:
    events, recorder = files
    with files_up_to((events.parent / OUTPUT_INDEX).stat().st_size + 8):
        recorder.append("stdout", b"one\n")  # its line in the index has at least 14 bytes
        recorder.append("stdout", b"0123456789" * 10)
    recorder.append("stderr", b"three\n")
    size = (events.parent / OUTPUT).stat().st_size - len(b"three\n")
    assert recorder.lost_bytes == 104
    gap, rest = follow_steps(events, events.parent)
    assert gap["missing"] == size, "what was written of it is not in the index"
    assert [rest] == output("three\n", stream="stderr")


def test_a_client_that_reconnects_receives_each_event_once() -> None:
    whole: Events = [{"event": "run"}, *output("a"), {"event": "metric"}, *output("b", "c"), {"event": "result"}]

    async def rest(had: Events) -> Events:
        async def messages() -> Any:
            for each in whole:
                if each["event"] != "output" or each not in had:  # the output itself is read from a position on
                    yield each

        return [each async for each in skip(messages(), sum(each["event"] != "output" for each in had))]

    for had in range(len(whole) + 1):
        assert asyncio.run(rest(whole[:had])) == whole[had:]


def device(task: int, kind: str) -> Device:
    return Device(f"/job:worker/replica:0/task:{task}/device:{kind}:0", kind)


CPUS = [device(task, "CPU") for task in range(3)]
GPUS = [device(task, "GPU") for task in range(3)]
WORKER_2 = "/job:worker/task:2"


@pytest.mark.parametrize(
    ("every", "patterns", "gpus", "late"),
    [
        (CPUS, (), None, [CPUS[2]]),
        (CPUS, ("/task:1",), None, []),
        (CPUS, ("/task:*",), None, [CPUS[2]]),
        (CPUS, (), 4, [CPUS[2]]),
        ([*CPUS, *GPUS], (), None, [GPUS[2]]),
        ([*CPUS, *GPUS], (), 2, []),
        ([*CPUS, *GPUS[:2]], (), None, []),
        ([*CPUS, GPUS[2]], (), None, []),
    ],
)
def test_late_devices_are_those_that_the_run_would_have_had(
    every: list[Device], patterns: Sequence[str], gpus: int | None, late: list[Device]
) -> None:
    missing = {WORKER_2: "worker:2 does not answer"}
    ready = [each for each in every if each.task != WORKER_2]
    selection = select(ready, patterns=patterns, gpus=gpus, missing=missing)
    options = RunOptions("pi", {}, devices=tuple(patterns), gpus=gpus)
    assert _late_devices(every, missing, selection, options) == [each.name for each in late]
    assert _late_devices(every, {}, selection, options) == []
