"""The journal of a host that has lost its state, from the topology of its cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster.agent.recover import write_journal
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.core.secrets import without_values
from tfcluster.core.states import TaskState
from tfcluster.paths import state_folder

TOPOLOGY = topology_of([task_of("worker:0", "a", env={"TOKEN": "hunter2"}, secrets=("TOKEN",)), task_of("ps:0", "b")])


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return StateDir(state_folder(TOPOLOGY.cluster, "a"))


def events(state: StateDir) -> list[str]:
    return [json.loads(line[line.index("{") :])["event"] for line in state.events.read_text().splitlines()]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_tasks_of_the_host_are_about_to_start(state: StateDir, is_replaced: bool) -> None:
    write_journal("a", TOPOLOGY, is_replaced=is_replaced)
    record = state.journal.read()
    assert record is not None
    [(name, task)] = record.tasks.items()
    assert (name, task.state, task.process) == (TOPOLOGY.tasks[0].name, TaskState.STARTING, None)
    assert (task.last_exit and (task.last_exit.reason, task.last_exit.expected)) == (
        ("host replaced", True) if is_replaced else None
    )
    assert events(state) == (["host-rebooted", "up"] if is_replaced else ["up"])
    assert record.topology == without_values(TOPOLOGY)
    assert "hunter2" in record.secrets.read_text()


def test_a_journal_is_kept_and_only_its_lost_values_come_back(state: StateDir) -> None:
    write_journal("a", TOPOLOGY, is_replaced=False)
    before = state.journal.read()
    assert before is not None
    before.secrets.unlink()
    write_journal("a", replace(TOPOLOGY, generation=7), is_replaced=True)
    assert not before.secrets.exists(), "another generation has other values"
    write_journal("a", TOPOLOGY, is_replaced=True)
    assert "hunter2" in before.secrets.read_text()
    assert state.journal.read() == before
    assert events(state) == ["up"]


def test_a_host_without_tasks_and_one_whose_agent_runs_get_no_journal(state: StateDir) -> None:
    write_journal("c", TOPOLOGY, is_replaced=False)
    assert state.lock() is None
    write_journal("a", TOPOLOGY, is_replaced=False)
    state.unlock()
    assert state.journal.read() is None
