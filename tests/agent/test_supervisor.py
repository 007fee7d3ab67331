"""The supervisor of tasks: a start is one write of the journal; if that fails, it is undone, and a restart waits."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.state.journal import Journal
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.tasks import supervisor as module
from tfcluster.agent.tasks.health import ProbeOutcome, ProbeResult
from tfcluster.agent.tasks.machine import TaskEvent
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.agent.tasks.transitions import TaskRuntime
from tfcluster.core.states import TaskState
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.os.network import bind_all_addresses


class Nothing:
    """Stands in for what a start does not need."""

    def start(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateDir]:
    state_dir = StateDir(tmp_path / "demo" / "a")
    state_dir.make()
    (state_dir.path / "log-buffers").mkdir()
    assert state_dir.lock() is None
    yield state_dir
    state_dir.clean_up()


@pytest.fixture
def supervisor(folder: StateDir, ports: PortAllocator) -> TaskSupervisor:
    nothing: Any = Nothing()
    secrets, network = SecretStore(folder.path / "demo.secrets"), ClusterNetwork("network", lambda: None)
    supervisor = TaskSupervisor("a", folder, secrets, ports, nothing, nothing, network)
    supervisor.tensorflow = nothing
    return supervisor


def start(supervisor: TaskSupervisor, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[TaskRuntime]:
    """Start servers that stay as they are after their fork: they wait for a message that `send` does not send."""
    monkeypatch.setattr(subprocesses.ChildProcess, "send", lambda child, message: None)
    topology = topology_of([task_of(name, "a") for name in names])
    supervisor.apply(topology, [task.name for task in topology.tasks], "up", "")
    return [*supervisor.tasks.values()]


def events_of(folder: StateDir) -> list[dict[str, Any]]:
    if not folder.events.exists():
        return []
    return [json.loads(line.split(" ", 2)[2]) for line in folder.events.read_text().splitlines()]


def child_pids() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def break_journal(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(journal: Journal, content: object) -> None:
        raise OSError(number, os.strerror(number), str(journal.path))

    monkeypatch.setattr(Journal, "write", fail)
    monkeypatch.setattr(Journal, "append", lambda journal, tasks: False)


def break_secrets(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    break_journal(monkeypatch, number)

    def fail(store: SecretStore, *topologies: object) -> None:
        raise OSError(number, os.strerror(number), store.path.with_name("elsewhere") / "demo.secrets")

    monkeypatch.setattr(SecretStore, "redact", fail)


def break_fork(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail() -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fork", fail)


def break_log_buffer(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(path: Path, log: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(module, "prepare", fail)


@pytest.mark.parametrize("again", [False, True], ids=["first", "change"])
async def test_a_start_that_cannot_be_recorded_leaves_all_as_it_was(
    folder: StateDir, monkeypatch: pytest.MonkeyPatch, supervisor: TaskSupervisor, ports: PortAllocator, again: bool
) -> None:
    topology = topology_of([task_of("worker:0", "a"), task_of("worker:1", "a")])
    changed = topology_of([task_of("worker:1", "a", cpus=2), task_of("worker:2", "a")])
    if again:
        supervisor.apply(topology, [], "up", "")
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
        break_journal(patch, errno.ENOSPC)
        with pytest.raises(ClusterError, match="No space left"):
            supervisor.apply(desired, [task.name for task in desired.tasks], "up", "")
    for _ in range(10):
        await asyncio.sleep(0.01)
    tasks = {name: vars(task) for name, task in supervisor.tasks.items()}
    assert (supervisor.topology, supervisor.tasks, tasks) == before
    # The journal may have closed its files: a snapshot opens them again.
    assert set(os.listdir("/proc/self/fd")) <= set(descriptors)
    assert child_pids() == children
    assert [event["event"] for event in events_of(folder)] == ["up"] * again
    assert (folder.journal.path.read_bytes() if again else None) == journal


async def test_a_task_of_a_start_that_could_not_be_recorded_is_not_started_later(
    folder: StateDir, supervisor: TaskSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port was taken, so it waited for another attempt."""
    monkeypatch.setattr(settings, "START_RETRY_SECONDS", 0.01)
    first = topology_of([task_of("worker:0", "a")])
    supervisor.apply(first, [], "up", "")
    taken = bind_all_addresses(0)
    new = task_of("worker:1", "a", port=taken.getsockname()[1])
    with monkeypatch.context() as patch:
        break_journal(patch, errno.ENOSPC)
        with pytest.raises(ClusterError, match="No space left"):
            supervisor.apply(replace(first, tasks=(*first.tasks, new)), [new.name], "up", "")
    taken.close()
    supervisor.write_journal()
    await asyncio.sleep(0.1)
    assert [event["event"] for event in events_of(folder)] == ["up"], "nothing else has happened"


@pytest.mark.parametrize(
    ("break_system", "number", "reason"),
    [
        (break_journal, errno.ENOSPC, "the disk of {} is full (ENOSPC)"),
        (break_journal, errno.EDQUOT, "the disk quota for {} is used up (EDQUOT)"),
        (break_journal, errno.EROFS, "the disk of {} is read-only (EROFS)"),
        (break_journal, errno.ENOMEM, "the system has no memory left (ENOMEM)"),
        (break_secrets, errno.ENOSPC, "the disk of {}/elsewhere is full (ENOSPC)"),
        (break_log_buffer, errno.ENOSPC, "the disk of {}/log-buffers is full (ENOSPC)"),
        (break_fork, errno.ENOMEM, "the system has no memory left (ENOMEM)"),
        (break_fork, errno.EAGAIN, "no more processes are allowed (`ulimit -u`, or pids.max of the cgroup) (EAGAIN)"),
        (break_fork, errno.EMFILE, "Too many open files (EMFILE)"),
    ],
)
async def test_a_server_that_cannot_be_restarted_now_is_restarted_later(
    folder: StateDir,
    supervisor: TaskSupervisor,
    monkeypatch: pytest.MonkeyPatch,
    break_system: Callable[[pytest.MonkeyPatch, int], None],
    number: int,
    reason: str,
) -> None:
    monkeypatch.setattr(settings, "START_RETRY_SECONDS", 0.01)
    children = child_pids()
    [task] = start(supervisor, monkeypatch, "worker:0")
    with monkeypatch.context() as patch:
        break_system(patch, number)
        assert task.process is not None
        task.process.kill()
        while task.process is not None:
            await asyncio.sleep(0.01)
        for _ in range(10):  # more attempts than the limit of restarts
            await asyncio.sleep(0.02)
        state = task.machine.state, task.machine.restarts, len(task.machine.exit_times), vars(task)["process"]
        assert state == (TaskState.BACKING_OFF, 0, 1, None)
        assert task.last_exit is not None
        detail = f"waiting: {reason.format(folder.path)}"
        assert (task.last_exit.reason, task.last_exit.detail) == ("not started", detail)
        assert child_pids() == children
    if supervisor.journal_obstacle:
        supervisor.write_journal()  # as the agent does every second
    while task.process is None:
        await asyncio.sleep(0.01)
    assert (task.machine.state, task.machine.restarts) == (TaskState.STARTING, 1)
    events = events_of(folder)
    assert [event["event"] for event in events] == ["up", "started", "died", "blocked", "started"]
    assert events[3]["detail"] == detail
    record = folder.journal.read()
    assert record is not None
    assert record.tasks[task.spec.name].process == task.process
    await supervisor.stop(1.0)


async def test_the_uptime_of_a_restarted_server_counts_from_its_latest_start(
    supervisor: TaskSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = start(supervisor, monkeypatch, "worker:0")
    first = task.process
    assert first is not None
    task.started -= 3600.0
    uptime = task.status().uptime_s
    assert uptime is not None
    assert uptime >= 3600.0
    killed_at = time.time()
    first.kill()
    while task.process in (first, None):
        await asyncio.sleep(0.01)
    assert task.started >= killed_at
    uptime = task.status().uptime_s
    assert uptime is not None
    assert uptime < 3600.0
    await supervisor.stop(1.0)


async def test_a_server_that_cannot_be_started_at_first_waits(
    folder: StateDir, supervisor: TaskSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = topology_of([task_of("worker:0", "a")])
    with monkeypatch.context() as patch:
        break_fork(patch, errno.EAGAIN)
        supervisor.apply(topology, [task.name for task in topology.tasks], "up", "")
    [task] = supervisor.tasks.values()
    assert (task.machine.state, task.machine.restarts) == (TaskState.BACKING_OFF, 0)
    record = folder.journal.read()
    assert record is not None
    assert record.tasks[task.spec.name].state is TaskState.BACKING_OFF


@pytest.mark.parametrize("has_secrets", [True, False], ids=["other folder", "reboot"])
async def test_the_next_agent_starts_a_task_only_with_its_secrets_wherever_they_were(
    folder: StateDir, supervisor: TaskSupervisor, has_secrets: bool
) -> None:
    """With another XDG_RUNTIME_DIR, or as after a reboot, which empties the folder in memory."""
    spec = task_of("worker:0", "a", env={"TOKEN": "hunter2"}, secrets=("TOKEN",))
    supervisor.apply(topology_of([spec]), [], "up", "")
    record = folder.journal.read()
    assert record is not None
    elsewhere = record.secrets.rename(folder.path / "elsewhere")
    if not has_secrets:
        elsewhere.unlink()
    supervisor._secrets = SecretStore(record.secrets)
    await supervisor.adopt(replace(record, secrets=elsewhere))
    [task] = supervisor.tasks.values()
    if has_secrets:
        assert task.spec.env == {"TOKEN": "hunter2"}
        assert not elsewhere.exists()
        assert "hunter2" in record.secrets.read_text()
    else:
        supervisor.dispatch([(task, TaskEvent.START)])
        await asyncio.sleep(0)
        assert task.machine.state is TaskState.FAILED
        assert task.last_exit is not None
        why = "secret TOKEN is lost (the journal does not store secrets): `tfcluster up SPEC` supplies it again"
        assert (task.last_exit.reason, task.last_exit.detail) == ("not started", why)


async def test_tasks_are_probed_sooner_while_one_does_not_answer(
    supervisor: TaskSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _ = start(supervisor, monkeypatch, "worker:0", "worker:1")

    async def paused() -> list[float]:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        with monkeypatch.context() as patch:
            patch.setattr("tfcluster.agent.tasks.supervisor.asyncio.sleep", sleep)
            await supervisor.pause()
        return waits

    assert sum(await paused()) == settings.HEALTH_INTERVAL_SECONDS
    supervisor.on_probe(task, ProbeResult(ProbeOutcome.SILENT, reason="Connection refused"))
    assert await paused() == [settings.HEALTH_RETRY_SECONDS]
    supervisor.on_probe(task, ProbeResult(ProbeOutcome.PROBE_OK))
    assert sum(await paused()) == settings.HEALTH_INTERVAL_SECONDS
    await supervisor.stop(1.0)


async def test_tasks_that_start_are_waited_for_but_not_for_ever(
    supervisor: TaskSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = start(supervisor, monkeypatch, "worker:0")
    await supervisor.wait_until_started(0.0)
    assert task.machine.state is TaskState.STARTING
    waiting = asyncio.create_task(supervisor.wait_until_started(600.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    supervisor.on_probe(task, ProbeResult(ProbeOutcome.PROBE_OK))
    await asyncio.wait_for(waiting, 60)
    await supervisor.stop(1.0)


async def test_a_host_without_tasks_is_up_for_the_next_agent_too(folder: StateDir, supervisor: TaskSupervisor) -> None:
    topology = topology_of([task_of("worker:0", "b")])
    supervisor.apply(topology, [], "up", "")
    record = folder.journal.read("a")
    assert record is not None
    vars(supervisor).update(topology=None)
    await supervisor.adopt(record)
    assert (supervisor.topology, supervisor.tasks) == (topology, {})


async def test_a_failed_probe_of_a_stopped_server_counts_twice(
    supervisor: TaskSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = start(supervisor, monkeypatch, "worker:0")
    counts = []
    for is_stopped in (False, True):
        monkeypatch.setattr(module, "is_stopped_by_signal", lambda pid, is_stopped=is_stopped: is_stopped)
        supervisor.on_probe(task, ProbeResult(ProbeOutcome.SILENT, reason="timed out"))
        counts.append(task.machine.failed_probes)
    assert counts == [1, 3]
    await supervisor.stop(1.0)
