"""What the full-screen view says of a task and a run: the GPU memory of their processes, where the driver tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.test_status import READY
from tfcluster.client.live.hosts import LiveRun, LiveView
from tfcluster.core.states import ClusterState, RunState
from tfcluster.core.status import ClusterStatus, RunStatus
from tfcluster.protocol.api.runs import RunSummary
from tfcluster.ui.top.rows import describe_run, describe_task


@pytest.mark.parametrize(("memory", "shown"), [(3 << 30, True), (None, False)])
def test_the_gpu_memory_of_a_task_and_a_run(memory: int | None, shown: bool) -> None:
    tasks = (replace(READY, gpu_memory_bytes=memory),)
    runs = (RunStatus("fit-3f9a", "script", RunState.RUNNING, 1.0, memory),)
    status = ClusterStatus("demo", ClusterState.RUNNING, "cluster.yaml", (), tasks, runs)
    record = RunSummary("fit-3f9a", "linear", {"steps": 100}, RunState.RUNNING, 1.0, 0.0, None, None, None, None)
    view = LiveView(status, {}, {}, (LiveRun("localhost", record),), ())
    for text in (describe_task(view, "worker:0"), describe_run(view, "fit-3f9a")):
        assert ("GPU memory 3.0 GiB" in text.plain) is shown
