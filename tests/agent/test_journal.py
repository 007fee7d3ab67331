"""The journal: what is written is read, anything else is no journal, and a writing replaces it whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent.journal import Journal, Record, TaskRecord
from tfcluster.errors import ClusterError
from tfcluster.model.layout import lay_out
from tfcluster.process import ProcessId
from tfcluster.spec.load import parse_spec

LAYOUT = lay_out(
    parse_spec("{name: demo, jobs: {ps: {tasks: 1, env: {A: ü}}, worker: ['[::1]:2223', localhost]}}", "c", "c"),
    "cluster.yaml",
).with_choices({"/job:ps/task:0": 2222}, {"/job:ps/task:0": ["0", "GPU-5f"]})
RECORD = Record(
    LAYOUT,
    {
        "/job:ps/task:0": TaskRecord(ProcessId(17, 123456), 1700000000.25, 3, True),
        "/job:worker/task:0": TaskRecord(None, 1700000001.5, 0, True),
        "/job:worker/task:1": TaskRecord(None, 0.0, 5, False),
    },
)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.json")


def test_what_is_written_is_read(journal: Journal) -> None:
    journal.write(RECORD)
    assert journal.read() == RECORD
    assert Journal(journal.path).read() == RECORD


def test_a_missing_journal_is_none(journal: Journal) -> None:
    assert journal.read() is None


def refuses(journal: Journal) -> bool:
    """Whether reading is an error that leaves the file: it may know of processes that nobody else does."""
    try:
        journal.read()
    except ClusterError as error:
        return str(journal.path) in error.message and journal.path.exists()
    return False


def test_a_folder_in_its_place_is_refused(journal: Journal) -> None:
    journal.path.mkdir()
    assert refuses(journal)


def test_a_journal_cut_at_any_byte_is_refused(journal: Journal) -> None:
    journal.write(RECORD)
    for length in reversed(range(journal.path.stat().st_size)):
        os.truncate(journal.path, length)
        assert refuses(journal), length


@pytest.mark.parametrize("text", [b"x", b"null", b"1", b'"x"', b"[]", b"{}", b"\xff\xfe", b"\0" * 100, b"{}{}"])
def test_garbage_is_refused(journal: Journal, text: bytes) -> None:
    journal.path.write_bytes(text)
    assert refuses(journal)


def written(journal: Journal) -> Any:
    journal.write(RECORD)
    return json.loads(journal.path.read_text())


@pytest.mark.parametrize(
    "path",
    [
        ("layout",),
        ("tasks",),
        ("layout", "cluster"),
        ("layout", "spec"),
        ("layout", "network"),
        ("layout", "tasks"),
        ("layout", "tasks", 0, "restart"),
        ("layout", "tasks", 0, "restart", "limit"),
        ("layout", "tasks", 0, "job"),
        ("tasks", "/job:ps/task:0", "process"),
        ("tasks", "/job:ps/task:0", "process", "start_time"),
        ("tasks", "/job:ps/task:0", "wanted"),
    ],
)
def test_a_journal_without_one_of_its_values_is_refused(journal: Journal, path: tuple[str | int, ...]) -> None:
    value = inner = written(journal)
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    journal.path.write_text(json.dumps(value))
    assert refuses(journal)


@pytest.mark.parametrize("path", [(), ("layout",), ("layout", "tasks", 0, "restart"), ("tasks", "/job:ps/task:0")])
def test_a_journal_of_another_version_with_more_in_it_is_refused_or_the_same(
    journal: Journal, path: tuple[str | int, ...]
) -> None:
    value = inner = written(journal)
    for key in path:
        inner = inner[key]
    inner["added"] = 1
    journal.path.write_text(json.dumps(value))
    assert refuses(journal) or journal.read() == RECORD


@pytest.mark.parametrize("other", [None, 1, "x", [1]])
@pytest.mark.parametrize(
    "path",
    [("layout",), ("layout", "tasks", 0, "restart"), ("layout", "tasks", 0), ("tasks", "/job:ps/task:0")],
)
def test_a_value_of_another_kind_is_refused(journal: Journal, path: tuple[str | int, ...], other: object) -> None:
    value = inner = written(journal)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = other
    journal.path.write_text(json.dumps(value))
    assert refuses(journal)


@pytest.mark.parametrize("other", [None, 1, "x", [1]])
def test_tasks_of_another_kind_are_refused(journal: Journal, other: object) -> None:
    journal.path.write_text(json.dumps({**written(journal), "tasks": other}))
    assert refuses(journal)


def test_a_writing_replaces_the_file_and_leaves_nothing_beside_it(journal: Journal) -> None:
    journal.write(RECORD)
    with journal.path.open() as reader:
        journal.write(Record(LAYOUT, {}))
        # Whoever had opened it reads the whole record of before.
        assert json.load(reader)["tasks"].keys() == RECORD.tasks.keys()
    assert journal.read() == Record(LAYOUT, {})
    assert list(journal.path.parent.iterdir()) == [journal.path]


def test_a_writing_that_fails_leaves_the_record_of_before(journal: Journal) -> None:
    journal.write(RECORD)
    journal.path.with_suffix(".new").mkdir()
    with pytest.raises(OSError, match="directory"):
        journal.write(Record(LAYOUT, {}))
    assert journal.read() == RECORD


def test_half_a_writing_is_not_read(journal: Journal) -> None:
    journal.write(RECORD)
    journal.path.with_suffix(".new").write_text("{")
    assert journal.read() == RECORD
    journal.write(Record(LAYOUT, {}))
    assert journal.read() == Record(LAYOUT, {})


def test_removing_leaves_nothing(journal: Journal) -> None:
    journal.write(RECORD)
    journal.path.with_suffix(".new").write_text("{")
    journal.remove()
    assert list(journal.path.parent.iterdir()) == []
    journal.remove()
