"""A layout is taken over with one writing of the journal; where that fails, nothing has happened."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.agent.hosts import layout_of, task_of
from tfcluster.agent import children
from tfcluster.agent.folder import StateFolder
from tfcluster.agent.journal import Journal
from tfcluster.agent.logs.keeper import LogKeeper
from tfcluster.agent.ports import Ports
from tfcluster.agent.record import Record
from tfcluster.agent.secret_values import SecretValues
from tfcluster.agent.tasks.health import Prober
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.errors import ClusterError
from tfcluster.model.layout import Layout
from tfcluster.model.states import TaskState


class Nothing:
    """Stands in for what a start does not need."""

    def start(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateFolder]:
    made = StateFolder(tmp_path / "demo" / "a")
    made.make()
    (made.path / "spools").mkdir()
    assert made.lock()
    yield made
    made.leave()


def supervisor_in(folder: StateFolder, ports: Ports) -> Supervisor:
    return Supervisor(
        "a",
        folder,
        SecretValues(folder.path / "demo.secrets"),
        ports,
        cast(Prober, Nothing()),
        cast(LogKeeper, Nothing()),
        lambda: cast(Any, None),
    )


def children_of_this() -> list[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return list(map(int, found))


def refuse(journal: Journal, record: Record) -> None:
    raise OSError(28, "No space left on device", str(journal.path))


@pytest.mark.parametrize("again", [False, True], ids=["first", "change"])
def test_a_start_that_cannot_be_recorded_leaves_all_as_it_was(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    layout = layout_of([task_of("worker:0", "a"), task_of("worker:1", "a")])
    changed = layout_of([task_of("worker:1", "a", cpus=2), task_of("worker:2", "a")])

    async def play() -> None:
        ports = Ports()
        supervisor = supervisor_in(folder, ports)
        if again:
            supervisor.apply(layout, [])
        before = (
            supervisor.layout,
            dict(supervisor.tasks),
            {name: vars(t).copy() for name, t in supervisor.tasks.items()},
        )
        journal = folder.journal.path.read_bytes() if again else None
        wanted: Layout = changed if again else layout
        list(map(ports.hold, wanted.ports_on("a")))
        descriptors = sorted(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "write", refuse)
            with pytest.raises(ClusterError, match="No space left"):
                supervisor.apply(wanted, [task.name for task in wanted.tasks])
        for _ in range(10):
            await asyncio.sleep(0.01)
        tasks = {name: vars(task) for name, task in supervisor.tasks.items()}
        assert (supervisor.layout, supervisor.tasks, tasks) == before
        assert sorted(os.listdir("/proc/self/fd")) == descriptors
        assert children_of_this() == []
        assert not folder.events.exists()
        assert (folder.journal.path.read_bytes() if again else None) == journal
        ports.keep_only(())

    asyncio.run(play())


def test_a_start_is_written_once_with_the_processes_that_wait_for_it(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of([task_of("worker:0", "a"), task_of("worker:1", "a")])
    written: list[Record] = []
    released: list[tuple[children.Child, object, int]] = []

    def release(child: children.Child, message: object) -> None:
        released.append((child, message, len(written)))

    async def play() -> None:
        ports = Ports()
        supervisor = supervisor_in(folder, ports)
        monkeypatch.setattr(Journal, "write", lambda journal, record: written.append(record))
        monkeypatch.setattr(children.Child, "send", release)
        supervisor.apply(layout, [task.name for task in layout.tasks])
        [record] = written
        assert {each.state for each in record.tasks.values()} == {TaskState.STARTING}
        assert {each.process.pid for each in record.tasks.values() if each.process} == set(children_of_this())
        assert [(message, writings) for _, message, writings in released] == [({}, 1), ({}, 1)]
        for child, _, _ in released:
            child.hang_up()
            child.kill()
            child.reap()
        ports.keep_only(())

    asyncio.run(play())
