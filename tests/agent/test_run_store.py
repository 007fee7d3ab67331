"""The records of runs: what survives an agent, unique prefixes of ids, and how many are kept."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.agent.test_journal import damage_by_pipe, make_newer
from tfcluster import settings
from tfcluster.agent.runs.manager import free_old_output, remove_old_runs
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.store import RunRecord, RunStore
from tfcluster.core.runs import RunOptions
from tfcluster.core.states import RunState
from tfcluster.core.status import MemberStatus
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.groups.member_states import MemberState, write_states
from tfcluster.processes.runs.run_plan import OUTPUT, OUTPUT_INDEX, acquire_run, driver_of

DEVICES = ["/job:w/replica:0/task:0/device:CPU:0"]
OPTIONS = RunOptions("pi", {"samples": 10}, timeout=9.5)
RECORD = RunRecord("pi-0000", OPTIONS, DEVICES, [], 5.0, False, RunState.RUNNING)


def test_the_status_of_an_active_launch_has_its_members_as_they_are_now(tmp_path: Path) -> None:
    record = replace(RECORD, options=replace(OPTIONS, jobs=("worker",)))
    run = Run.adopt(record, tmp_path)
    assert run.status().members == ()
    for exit_code in (None, 3, -9):
        write_states(tmp_path, {"worker:0": MemberState(5, "alpha", exit_code)})
        for _ in range(2):
            assert run.status().members == (MemberStatus("worker:0", "alpha", 5, exit_code),)
    run.record = replace(record, state=RunState.FAILED)
    assert run.status().members == ()


def keep(records: RunStore, *runs: RunRecord) -> None:
    for run in runs:
        assert records.make_folder(run.run)
        records.write(run)


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, stopping=(RunState.FAILED, {"message": "m", "hint": "", "exit_code": 124})),
        replace(RECORD, stopping=(RunState.CANCELLED, None), state=RunState.CANCELLED, seconds=1.5),
        replace(RECORD, state=RunState.SUCCEEDED, result={"pi": 3.1}, options=replace(OPTIONS, timeout=None)),
    ],
)
def test_a_record_is_read_as_it_was_written(tmp_path: Path, record: RunRecord) -> None:
    records = RunStore(tmp_path)
    keep(records, record)
    assert records.read("pi-0000") == record
    assert records.read_all() == [record]


def keep_ended(records: RunStore, count: int) -> None:
    """Keep runs that have ended one after the other."""
    for number in range(count):
        keep(records, replace(RECORD, run=f"pi-{number}", state=RunState.SUCCEEDED, started=float(number)))
        os.utime(records.folder(f"pi-{number}") / "record.json", (number, number))


def write_deep(path: Path) -> None:
    path.write_text(100_000 * "[")


def link_to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def write_text(text: str, path: Path) -> None:
    path.write_text(text)


def write_other(name: str, value: object, path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


@pytest.mark.parametrize(
    "damage",
    [
        *(partial(write_text, text) for text in ("", "{", "[]", '{"run": "pi-0000"}', '{"stopping": 5}')),
        write_deep,
        link_to_zeros,
        damage_by_pipe,
        make_newer,
        partial(write_other, "started", "x"),
        partial(write_other, "options", {"program": "pi", "parameters": {}, "timeout": "x"}),
        partial(write_other, "devices", 5),
        partial(write_other, "stopping", []),
        partial(write_other, "stopping", ["failed"]),
        partial(write_other, "run", "pi-0001"),
    ],
)
def test_a_record_that_cannot_be_read_says_why_and_does_not_hide_the_others(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    problem = "written by tfcluster 9.9.9, which is newer" if damage is make_newer else ""
    records = RunStore(tmp_path)
    other = replace(RECORD, run="pi-0002")
    keep(records, RECORD, other)
    damage(tmp_path / "pi-0000" / "record.json")
    damaged, readable = sorted(records.read_all(), key=lambda record: record.run)
    assert (damaged.run, damaged.state, readable) == ("pi-0000", RunState.UNREADABLE, other)
    assert damaged.error is not None
    assert f"{tmp_path}/pi-0000/record.json: {problem}" in damaged.error["message"]


@pytest.mark.parametrize("spoil", [write_deep, damage_by_pipe, make_newer])
def test_a_record_that_cannot_be_read_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(settings, "RUNS_KEPT", 1)
    records = RunStore(tmp_path)
    keep_ended(records, 4)
    spoil(tmp_path / "pi-0" / "record.json")
    os.utime(tmp_path / "pi-0" / "record.json", (0, 0))
    records.remove_old([])
    records.remove_old([])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pi-0", "pi-3"]


def test_a_run_is_found_by_a_unique_prefix(tmp_path: Path) -> None:
    records = RunStore(tmp_path)
    for name in ("pi-12", "pi-1234", "mean-12"):
        assert records.make_folder(name)
        assert not records.make_folder(name), "a folder is not used again"
    assert records.find("m") == "mean-12"
    assert records.find("pi-123") == "pi-1234"
    assert records.find("pi-12") == "pi-12", "a whole id, though it begins another"
    with pytest.raises(ClusterError, match="several runs begin with 'pi': pi-12, pi-1234") as several:
        records.find("pi")
    assert several.value.exit_code is ExitCode.USAGE
    for name in ("", "x", "pi-12345", "../localhost"):
        with pytest.raises(ClusterError, match="no run "):
            records.find(name)
    with pytest.raises(ClusterError, match="no run "):
        RunStore(tmp_path / "none").find("pi")


def test_active_runs_and_the_latest_ended_runs_are_kept(tmp_path: Path) -> None:
    records = RunStore(tmp_path)
    keep_ended(records, settings.RUNS_KEPT + 5)
    keep(records, replace(RECORD, run="going-on", started=-1.0))
    os.utime(tmp_path / "going-on" / "record.json", (-1, -1))
    records.remove_old(["pi-1"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "going-on",
        "pi-1",
        *(f"pi-{number}" for number in range(6, settings.RUNS_KEPT + 5)),
        "pi-5",
    }
    assert [record.run for record in records.read_all()][:3] == ["going-on", "pi-1", "pi-5"]


async def test_the_folders_of_old_runs_are_removed_in_a_child_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "RUNS_KEPT", 1)
    records = RunStore(tmp_path)
    keep_ended(records, 3)
    (tmp_path / "pi-0" / "files" / "model").touch()
    before = set(psutil.Process().children())
    remove_old_runs(records, [], settings.RUNS_OUTPUT_BYTES)
    while records.has_old([]) or set(psutil.Process().children()) - before:
        await asyncio.sleep(0.01)
    assert [path.name for path in tmp_path.iterdir()] == ["pi-2"]


def test_only_runs_that_have_certainly_ended_lose_their_output(tmp_path: Path) -> None:
    records = RunStore(tmp_path)
    for name in ("ended", "newer", "damaged"):
        keep(records, replace(RECORD, run=name, state=RunState.SUCCEEDED))
        (tmp_path / name / OUTPUT).write_bytes(b"x" * 200_000)
        (tmp_path / name / OUTPUT_INDEX).touch()
    make_newer(tmp_path / "newer" / "record.json")
    (tmp_path / "damaged" / "record.json").write_text("{")
    free_old_output(records, [], 1000)
    stored = {name: (tmp_path / name / OUTPUT).stat().st_blocks > 0 for name in ("ended", "newer", "damaged")}
    assert stored == {"ended": False, "newer": True, "damaged": True}


def test_a_run_is_claimed_once(tmp_path: Path) -> None:
    driver = ProcessHandle(17, 4711)
    assert driver_of(tmp_path) is None
    assert acquire_run(tmp_path, driver)
    assert not acquire_run(tmp_path, None)
    assert not acquire_run(tmp_path, ProcessHandle(18, 4712))
    assert driver_of(tmp_path) == driver
    ended = tmp_path / "ended"
    ended.mkdir()
    assert acquire_run(ended, None)
    assert not acquire_run(ended, driver), "a driver that comes too late"
    assert driver_of(ended) is None
