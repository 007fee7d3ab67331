"""The journal: what is written is read, what is damaged is refused, and a last line that was cut is ignored."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.strategies import JSON
from tfcluster.agent.state import journal as module
from tfcluster.agent.state.journal import Journal, JournalError, Record, TaskRecord
from tfcluster.core.resolve import resolve_spec
from tfcluster.core.states import TaskState
from tfcluster.core.status import LastExit
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.os.procfs import boot_id
from tfcluster.paths import PACKAGE_ROOT
from tfcluster.spec.load import parse_spec

TOPOLOGY = resolve_spec(
    parse_spec("{name: demo, jobs: {ps: {tasks: 1, env: {A: ü}}, worker: ['[::1]:2223', localhost]}}", "c", "c"),
    "cluster.yaml",
).with_allocation({"/job:ps/task:0": 2222}, {"/job:ps/task:0": ["0", "GPU-5f"]})
SECRETS = Path("/run/user/1000/tfcluster/demo.localhost.0123.secrets")
RECORD = Record(
    TOPOLOGY,
    {
        "/job:ps/task:0": TaskRecord(
            ProcessHandle(17, 123456), 1700000000.25, 3, TaskState.STARTING, exit_times=(11.5, 12.25)
        ),
        "/job:worker/task:0": TaskRecord(None, 1700000001.5, 0, TaskState.BACKING_OFF, (7.0,), deadline=8.5),
        "/job:worker/task:1": TaskRecord(
            None, 0.0, 5, TaskState.FAILED, last_exit=LastExit("SIGKILL", 1700000002.0, "why")
        ),
    },
    SECRETS,
)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.json")


def test_a_missing_journal_is_none(journal: Journal) -> None:
    assert journal.read() is None


def refuses(journal: Journal) -> bool:
    """Whether reading is an error that leaves the file: it may be the only record of processes."""
    try:
        journal.read()
    except ClusterError as error:
        return str(journal.path) in error.message and journal.path.exists()
    return False


@pytest.mark.parametrize(
    "text", [b"", b"x", b"{", b"null", b"1", b'"x"', b"[]", b"{}", b"\xff\xfe", b"\0" * 100, b"{}{}"]
)
def test_garbage_is_refused(journal: Journal, text: bytes) -> None:
    journal.path.write_bytes(text)
    assert refuses(journal)


def of_this_process(record: Record) -> Record:
    process = ProcessHandle.from_pid(os.getpid())
    ps = replace(record.tasks["/job:ps/task:0"], process=process)
    return replace(record, tasks={**record.tasks, "/job:ps/task:0": ps})


def test_the_processes_of_a_journal_are_found_whatever_its_format(journal: Journal) -> None:
    journal.write(RECORD)
    assert journal.processes() == [], "process 17 does not run since then"
    record = of_this_process(RECORD)
    process = record.tasks["/job:ps/task:0"].process
    journal.write(record)
    assert journal.processes() == [process]
    written = journal.path.read_text()
    for text in (
        written.replace("topology", "cluster"),
        written.replace(": ", ":"),
        written[written.index('"tasks"') :],
    ):
        journal.path.write_text(text)
        assert journal.processes() == [process]
    journal.path.write_text(written.replace(boot_id(), "another boot"))
    assert journal.processes() == [], "another process has the pid and start time in this boot"


NEW_PS = TaskRecord(ProcessHandle(18, 234567), 1700000003.0, 4, TaskState.STARTING, exit_times=(11.5, 12.25, 20.0))
CHANGED = replace(RECORD, tasks={**RECORD.tasks, "/job:ps/task:0": NEW_PS})


def test_a_change_is_appended_to_the_journal(journal: Journal) -> None:
    journal.write(RECORD)
    snapshot = journal.path.read_bytes()
    assert journal.append({"/job:ps/task:0": NEW_PS})
    assert journal.path.read_bytes().startswith(snapshot)
    assert len(journal.path.read_bytes().splitlines()) == 2
    assert Journal(journal.path).read("localhost") == CHANGED
    assert not Journal(journal.path).append({"/job:ps/task:0": NEW_PS}), "another agent begins with a snapshot"
    assert journal.append({"/job:ps/task:0": RECORD.tasks["/job:ps/task:0"]})
    assert Journal(journal.path).read("localhost") == RECORD, "the latest change counts"


def test_a_change_costs_the_same_however_many_tasks_there_are(journal: Journal) -> None:
    sizes = []
    for tasks in (RECORD.tasks, {**RECORD.tasks, **{f"/job:x/task:{index}": NEW_PS for index in range(1000)}}):
        journal.write(replace(RECORD, tasks=tasks))
        size = journal.path.stat().st_size
        assert journal.append({"/job:ps/task:0": NEW_PS})
        sizes.append(journal.path.stat().st_size - size)
    assert sizes[0] == sizes[1]


def cuts(path: Path, end: int) -> list[int]:
    """Lengths to which a file is cut: around the end of its first line, and between."""
    return sorted({*range(0, path.stat().st_size, 7), *range(end - 3, end + 4)}, reverse=True)


def test_of_a_journal_that_is_cut_a_torn_last_line_is_ignored_and_the_rest_is_refused(journal: Journal) -> None:
    """An agent that is killed in the middle of a write leaves such a line."""
    journal.write(RECORD)
    size = journal.path.stat().st_size
    journal.append({"/job:ps/task:0": NEW_PS})
    for length in cuts(journal.path, size):
        os.truncate(journal.path, length)
        if length >= size - 1:  # without its newline it is whole
            assert journal.read("localhost") == RECORD, length
        else:
            assert refuses(journal), length


@pytest.mark.parametrize("line", [b"{}", b"x", b"", b"null", b'{"task": "/job:x/task:0", "record": null}', b"\xff"])
def test_a_damaged_line_before_the_last_one_is_refused(journal: Journal, line: bytes) -> None:
    journal.write(RECORD)
    snapshot = journal.path.read_bytes()
    journal.append({"/job:ps/task:0": NEW_PS})
    change = journal.path.read_bytes()[len(snapshot) :]
    journal.path.write_bytes(snapshot + line + b"\n" + change)
    assert refuses(journal)


def test_a_long_journal_asks_for_a_snapshot(journal: Journal) -> None:
    journal.write(RECORD)
    changes = 0
    while journal.append({"/job:ps/task:0": NEW_PS}):
        changes += 1
    assert changes > 100
    journal.write(CHANGED)
    assert len(journal.path.read_bytes().splitlines()) == 1
    assert journal.append({"/job:ps/task:0": NEW_PS})


def test_a_change_that_does_not_fit_on_the_disk_leaves_the_journal_as_it_was(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    journal.write(RECORD)
    snapshot = journal.path.read_bytes()
    for room in (0, 7):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data, room=room: real(fd, data[:room]))
            assert not journal.append({"/job:ps/task:0": NEW_PS})
        assert journal.path.read_bytes() == snapshot
        assert not journal.append({"/job:ps/task:0": NEW_PS}), "a snapshot brings what could not be written"
        journal.write(RECORD)


def test_unreleased_processes_are_known_until_the_next_snapshot(journal: Journal) -> None:
    assert journal.unreleased() == frozenset()
    journal.write(RECORD)
    journal.note_unreleased(ProcessHandle(17, 123456))
    journal.note_unreleased(ProcessHandle(18, 123457))
    assert Journal(journal.path).unreleased() == {ProcessHandle(17, 123456), ProcessHandle(18, 123457)}
    journal.write(RECORD)
    assert journal.unreleased() == frozenset()


def test_removing_the_journal_leaves_no_file_and_no_descriptor(journal: Journal) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        journal.write(RECORD)
        journal.append({"/job:ps/task:0": NEW_PS})
    journal.path.with_suffix(".json.new").write_text("{")
    for _ in range(2):
        journal.remove()
    assert list(journal.path.parent.iterdir()) == []
    assert os.listdir("/proc/self/fd") == before


def damage_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def damage_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def damage_by_size(path: Path) -> None:
    os.truncate(path, 2**40)


def damage_by_value(*keys: str, value: Any = ...) -> Callable[[Path], object]:
    """Write another value at a place in the document, or none."""

    def damage(path: Path) -> None:
        document = inner = json.loads(path.read_text())
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        if value is ...:
            del inner[keys[-1]]
        path.write_text(json.dumps(document))

    return damage


#: What is wrong, and what is said of it.
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "shape": (lambda path: path.write_text('{"topology": 1}'), "missing"),
    "type": (
        damage_by_value("tasks", "/job:worker/task:0", "deadline", value="x"),
        "tasks./job:worker/task:0.deadline: expected a number, got 'x'",
    ),
    "task": (
        damage_by_value("tasks", "/job:worker/task:7", value=asdict(RECORD.tasks["/job:worker/task:0"])),
        "tasks./job:worker/task:7: there is no such task in the topology",
    ),
    "boot": (damage_by_value("boot"), "boot: expected a string, got None"),
    "format": (damage_by_value("format", value="2"), "format: expected an integer"),
    "depth": (lambda path: path.write_text("[" * 100_000), "too deep inside each other"),
    "text": (lambda path: path.write_bytes(b"\xff{}"), "decode"),
    "folder": (damage_by_folder, "not a regular file"),
    "pipe": (damage_by_pipe, "not a regular file"),
    "size": (damage_by_size, "bytes long"),
}


@pytest.mark.parametrize("damage", [damage_by_folder, damage_by_pipe])
def test_a_file_is_written_whatever_an_earlier_write_has_left(journal: Journal, damage: Callable[[Path], None]) -> None:
    """To open a named pipe for writing would wait for ever for someone who reads."""
    path = journal.path.with_suffix(".json.new")
    path.touch()
    damage(path)
    journal.write(RECORD)
    assert journal.read("localhost") == RECORD


@pytest.mark.parametrize("damage", DAMAGE)
def test_any_damage_is_an_error_that_names_down(journal: Journal, damage: str) -> None:
    journal.write(RECORD)
    DAMAGE[damage][0](journal.path)
    with pytest.raises(JournalError) as caught:
        journal.read("localhost")
    assert str(journal.path) in caught.value.message
    assert DAMAGE[damage][1] in caught.value.message
    assert "tfcluster down" in caught.value.hint
    journal.remove()
    assert list(journal.path.parent.iterdir()) == []


def test_a_record_of_another_host_or_of_a_task_that_does_not_exist_is_refused(journal: Journal) -> None:
    journal.write(RECORD)
    journal.append({"/job:x/task:0": NEW_PS})
    with pytest.raises(JournalError, match="no such task"):
        journal.read("localhost")
    journal.write(RECORD)
    with pytest.raises(JournalError, match="there is no such task"):
        journal.read("alpha")
    journal.write(replace(RECORD, tasks={}))
    with pytest.raises(JournalError, match="missing"):
        journal.read("localhost")


JSON_VALUES = JSON | st.sampled_from([-1, 2**40, 10**400, float("inf"), "ready", "\0", "\ud800"])


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*place, key))


@pytest.mark.slow
@settings(max_examples=500)
@given(st.data(), JSON_VALUES)
def test_a_journal_with_any_other_value_in_it_is_read_or_refused(data: st.DataObject, other: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.json")
        journal.write(RECORD)
        value = json.loads(journal.path.read_text())
        place = data.draw(st.sampled_from(list(places(value))))
        inner: Any = [value]
        key: Any = 0
        for step in place:
            inner, key = inner[key], step
        inner[key] = other
        journal.path.write_text(json.dumps(value if place else other))
        restored = None
        with suppress(JournalError):
            restored = journal.read("localhost")
        if restored is not None:
            journal.write(restored)
            assert journal.read("localhost") == restored
        journal.close()


def test_after_a_boot_processes_and_monotonic_times_are_dropped(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.write(RECORD)
    monkeypatch.setattr(module, "boot_id", lambda: "another")
    restored = journal.read()
    assert restored is not None
    assert {(task.process, task.exit_times, task.deadline) for task in restored.tasks.values()} == {(None, (), None)}
    assert [task.restarts for task in restored.tasks.values()] == [3, 0, 5]
    for name, task in restored.tasks.items():
        if RECORD.tasks[name].process is None:
            assert task.last_exit == RECORD.tasks[name].last_exit
        else:
            assert task.last_exit is not None
            assert (task.last_exit.reason, task.last_exit.expected) == ("reboot", True)
    # A server that ran has exited; nothing else is known of it.
    assert [task.state for task in restored.tasks.values()] == [
        TaskState.READY,
        TaskState.BACKING_OFF,
        TaskState.FAILED,
    ]


def make_newer(path: Path) -> None:
    """Let a newer version of tfcluster have written a document: it is not as this version expects it."""
    path.write_text(json.dumps({"format": 99, "tfcluster": "9.9.9", "topology": "elsewhere"}))


def test_a_journal_of_a_newer_version_is_not_damaged_and_stays(journal: Journal) -> None:
    make_newer(journal.path)
    with pytest.raises(JournalError, match=r"written by tfcluster 9\.9\.9, which is newer") as caught:
        journal.read("localhost")
    assert caught.value.is_newer
    assert "damaged" not in caught.value.message
    assert "Install that version" in caught.value.hint


def test_a_write_leaves_only_the_file_and_the_link_to_its_code(journal: Journal) -> None:
    journal.write(RECORD)
    with journal.path.open() as reader:
        journal.write(Record(TOPOLOGY, {}, SECRETS))
        # A process that had opened it reads the whole record of before.
        assert json.load(reader)["tasks"].keys() == RECORD.tasks.keys()
    assert journal.read() == Record(TOPOLOGY, {}, SECRETS)
    code = journal.path.with_name("code")
    assert sorted(journal.path.parent.iterdir()) == [code, journal.path]
    assert code.readlink() == PACKAGE_ROOT
