"""When runs are warned of the end of the Slurm job in which their agent runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.clusters import topology_of
from tfcluster import settings
from tfcluster.agent.event_loop import ChangeNotifier
from tfcluster.agent.host_end import HostEnd
from tfcluster.core.hosts import Provided

GRACE = 120
CAUSE = "the time limit of the Slurm job was reached"


class Job:
    """A job whose end a program in the place of squeue tells."""

    def __init__(self, folder: Path) -> None:
        self._end = folder / "end"
        self.squeue = folder / "squeue"
        self.squeue.write_text(f"#!/bin/sh\ncat '{self._end}'\n")
        self.squeue.chmod(0o700)

    def end_in(self, *seconds: float) -> None:
        """Have a line for each component of the job."""
        self._end.write_text("".join(f"{time.time() + each:.0f}\n" for each in seconds))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def host_end(job: Job, host: str, warnings: list[str], grace: int = GRACE) -> HostEnd:
    topology = topology_of("hosts: {a: , b: }\njobs: {worker: {tasks: 2}}")
    provided = Provided("slurm", {"id": 7, "squeue": str(job.squeue), "grace": grace})
    topology = topology.on_hosts(replace(each, provided=provided) for each in topology.hosts)
    supervisor: Any = SimpleNamespace(topology=topology, changed=ChangeNotifier())
    return HostEnd("a question", host, supervisor, warnings.append)


def ends_in(end: HostEnd) -> float:
    status = end.status()
    assert status is not None
    assert status.ends_in_s is not None
    return status.ends_in_s


async def test_runs_are_warned_once_of_each_end_that_is_near(job: Job) -> None:
    warnings: list[str] = []
    end = host_end(job, "a", warnings)
    for seconds, count in ((1000, 0), (100, 1), (100, 1), (1000, 1), (50, 2)):
        if seconds != 100 or not warnings:
            job.end_in(seconds)
        await end.check()
        assert len(warnings) == count, seconds
        assert 0 <= ends_in(end) <= seconds + 1


async def test_runs_are_warned_when_the_end_is_near_and_a_status_knows_of_more_time(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    end = host_end(job, "a", warnings)
    job.end_in(GRACE + 600)
    await end.check()
    job.end_in(GRACE + 1000)
    await end.refresh()
    assert ends_in(end) <= GRACE + 601, "the answer is young"
    monkeypatch.setattr(settings, "HOST_END_AGE_SECONDS", 0.0)
    waiting = asyncio.ensure_future(end.pause())
    await asyncio.sleep(0)
    await end.refresh()
    assert ends_in(end) > GRACE + 900
    assert not waiting.done()
    job.end_in(GRACE + 1)
    await end.refresh()
    async with asyncio.timeout(60):
        await waiting  # for the new time
    await end.check()
    assert warnings == [CAUSE]


async def test_the_agent_whose_host_the_head_task_moves_to_asks_at_once(job: Job) -> None:
    warnings: list[str] = []
    job.end_in(10)
    end = host_end(job, "b", warnings)
    supervisor: Any = end._supervisor
    waiting = asyncio.ensure_future(end.pause())
    await asyncio.sleep(0)
    assert not waiting.done()
    first, second = supervisor.topology.tasks
    moved = (replace(first, host="b"), replace(second, host="a"))
    supervisor.topology = replace(supervisor.topology, tasks=moved)
    supervisor.changed.notify()
    async with asyncio.timeout(60):
        await waiting
    await end.check()
    assert warnings == [CAUSE]


def test_a_run_that_is_stopped_because_its_host_ends_says_what_ended(job: Job) -> None:
    warnings: list[str] = []
    end = host_end(job, "b", warnings)
    supervisor: Any = end._supervisor
    for provided in (Provided("kubernetes"), None):
        hosts = tuple(replace(each, provided=provided) for each in supervisor.topology.hosts)
        supervisor.topology = replace(supervisor.topology, hosts=hosts)
        end.warn_now()
    assert warnings == ["the pod was deleted", "the host is shutting down"]


async def test_a_heterogeneous_job_ends_with_its_first_component(job: Job) -> None:
    warnings: list[str] = []
    end = host_end(job, "a", warnings)
    job.end_in(1000, 100, 2000)
    await end.check()
    assert len(warnings) == 1
    assert 0 <= ends_in(end) <= 101


async def test_the_agent_of_the_heads_host_alone_asks_and_without_a_grace_nothing_is_warned(job: Job) -> None:
    warnings: list[str] = []
    job.end_in(10)
    other = host_end(job, "b", warnings)
    await other.check()
    assert other.status() is None
    await host_end(job, "a", warnings, grace=0).check()
    assert warnings == []
