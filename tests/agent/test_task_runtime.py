"""The CPU usage in a task's status."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.test_journal import TOPOLOGY
from tfcluster.agent.tasks import transitions
from tfcluster.agent.tasks.machine import TaskStateMachine
from tfcluster.agent.tasks.transitions import TaskRuntime
from tfcluster.core.states import TaskState
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.os.procfs import ResourceUsage


def use(cpu_seconds: float, at: float) -> ResourceUsage:
    return ResourceUsage(rss_bytes=1, cpu_seconds=cpu_seconds, at=at, age=at)


@pytest.mark.parametrize(
    ("samples", "percent"),
    [
        ([], 10.0),  # since its start, 100 seconds ago
        ([use(9.99, 99.99)], 10.0),  # too short ago to say anything
        ([use(9.0, 98.0)], 50.0),
        ([use(9.0, 96.0), use(9.0, 98.0)], 50.0),
        ([use(9.0, 98.0), use(9.99, 99.99)], 50.0),
    ],
)
def test_cpu_usage_is_measured_over_a_minimum_interval(
    monkeypatch: pytest.MonkeyPatch, samples: list[ResourceUsage], percent: float
) -> None:
    process = ProcessHandle.from_pid(os.getpid())
    machine = TaskStateMachine(TOPOLOGY.tasks[0].restart, TaskState.READY)
    task = TaskRuntime(TOPOLOGY.tasks[0], machine, Path("log"), Path("spool"), process)
    readings = iter([*samples, use(10.0, 100.0)])
    monkeypatch.setattr(transitions, "read_usage", lambda pid: next(readings))
    for _ in samples:
        task.sample_usage()
    assert task.status().cpu_percent == percent
