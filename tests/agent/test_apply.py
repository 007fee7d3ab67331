"""Applying a topology writes the journal once; if that fails, nothing has changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster.agent import subprocesses
from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.agent.logs.cluster_logs import LogCollector
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.state.journal import Journal
from tfcluster.agent.state.journal_record import Record
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.tasks.health_monitor import ProbeClient
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.states import TaskState
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError


class Nothing:
    """Stands in for what a start does not need."""

    def start(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateDir]:
    state_dir = StateDir(tmp_path / "demo" / "a")
    state_dir.make()
    (state_dir.path / "log-buffers").mkdir()
    assert state_dir.lock()
    yield state_dir
    state_dir.clean_up()


def supervisor_in(folder: StateDir, ports: PortAllocator) -> Supervisor:
    return Supervisor(
        "a",
        folder,
        SecretStore(folder.path / "demo.secrets"),
        ports,
        cast(ProbeClient, Nothing()),
        cast(LogCollector, Nothing()),
        lambda: cast(Any, None),
        ClusterNetwork("network", lambda: None),
    )


def child_pids() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def refuse(journal: Journal, record: Record) -> None:
    raise OSError(28, "No space left on device", str(journal.path))


@pytest.mark.parametrize("again", [False, True], ids=["first", "change"])
def test_a_start_that_cannot_be_recorded_leaves_all_as_it_was(
    folder: StateDir, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    topology = topology_of([task_of("worker:0", "a"), task_of("worker:1", "a")])
    changed = topology_of([task_of("worker:1", "a", cpus=2), task_of("worker:2", "a")])

    async def play() -> None:
        ports = PortAllocator()
        supervisor = supervisor_in(folder, ports)
        if again:
            supervisor.apply(topology, [])
        before = (
            supervisor.topology,
            dict(supervisor.tasks),
            {name: vars(t).copy() for name, t in supervisor.tasks.items()},
        )
        journal = folder.journal.path.read_bytes() if again else None
        desired: ClusterTopology = changed if again else topology
        list(map(ports.reserve, desired.ports_on("a")))
        descriptors, children = sorted(os.listdir("/proc/self/fd")), child_pids()
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "write", refuse)
            with pytest.raises(ClusterError, match="No space left"):
                supervisor.apply(desired, [task.name for task in desired.tasks])
        for _ in range(10):
            await asyncio.sleep(0.01)
        tasks = {name: vars(task) for name, task in supervisor.tasks.items()}
        assert (supervisor.topology, supervisor.tasks, tasks) == before
        # The journal may have closed its files: a snapshot opens them again.
        assert set(os.listdir("/proc/self/fd")) <= set(descriptors)
        assert child_pids() == children
        assert not folder.events.exists()
        assert (folder.journal.path.read_bytes() if again else None) == journal
        ports.release_except(())

    asyncio.run(play())


def test_a_start_is_written_once_with_the_processes_that_wait_for_it(
    folder: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = topology_of([task_of("worker:0", "a"), task_of("worker:1", "a")])
    written: list[Record] = []
    released: list[tuple[subprocesses.ChildProcess, object, int]] = []

    def release(child: subprocesses.ChildProcess, message: object) -> None:
        released.append((child, message, len(written)))

    async def play() -> None:
        ports, children = PortAllocator(), child_pids()
        supervisor = supervisor_in(folder, ports)
        monkeypatch.setattr(Journal, "write", lambda journal, record: written.append(record))
        monkeypatch.setattr(subprocesses.ChildProcess, "send", release)
        supervisor.apply(topology, [task.name for task in topology.tasks])
        [record] = written
        assert {each.state for each in record.tasks.values()} == {TaskState.STARTING}
        assert {each.process.pid for each in record.tasks.values() if each.process} == child_pids() - children
        assert [(message, writings) for _, message, writings in released] == [({}, 1), ({}, 1)]
        for child, _, _ in released:
            child.close_pipe()
            child.kill()
            child.wait()
        ports.release_except(())

    asyncio.run(play())
