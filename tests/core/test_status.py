"""The status of a cluster from those of its hosts, and as JSON; tests/golden/status.json has all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.clusters import topology_of
from tfcluster.core.states import ClusterState, HostState, RunState, TaskState
from tfcluster.core.status import (
    ClusterStatus,
    HostStatus,
    LastExit,
    RunStatus,
    TaskStatus,
    aggregate_status,
    unknown_task_status,
)
from tfcluster.core.topology import Task

READY = TaskStatus(
    task="/job:worker/task:0",
    job="worker",
    index=0,
    host="localhost",
    address="localhost:2223",
    state=TaskState.READY,
    pid=17,
    restarts=1,
    uptime_s=1.5,
    cpu_percent=99.5,
    rss_bytes=1024,
    devices=("/job:worker/replica:0/task:0/device:CPU:0",),
    last_exit=LastExit("SIGKILL", 12.5, "what it said", ("its last",)),
    gpu_memory_bytes=4096,
)
_OTHER: dict[str, Any] = {
    **dict.fromkeys(("pid", "uptime_s", "cpu_percent", "rss_bytes", "last_exit", "gpu_memory_bytes")),
    **{"task": "/job:worker/task:1", "index": 1, "address": "localhost", "restarts": 0, "devices": ()},
}
FAILED = replace(READY, state=TaskState.BACKING_OFF, **_OTHER)


LAYOUT = topology_of(
    "name: demo\n"
    "hosts: {alpha: {address: 10.0.0.1}, beta: {address: 10.0.0.2}, gamma: {address: 10.0.0.3}}\n"
    "jobs:\n"
    "  ps: {tasks: 1, hosts: [alpha]}\n"
    "  worker: ['10.0.0.2:2222', '10.0.0.3:2222']\n"
)
RUN = RunStatus("pi-1", "pi", RunState.RUNNING, 1.0)


def of_host(host: str, *tasks: Task, runs: tuple[RunStatus, ...] = ()) -> ClusterStatus:
    """What a host tells: its tasks are ready."""
    tasks_of_host = tuple(
        replace(unknown_task_status(task, TaskState.READY), pid=1) for task in tasks or LAYOUT.on(host)
    )
    return ClusterStatus(
        "demo", ClusterState.RUNNING, "demo.yaml", (HostStatus(host, HostState.UP, 7, "2.21.0"),), tasks_of_host, runs
    )


def test_tasks_are_in_the_order_of_the_spec_whichever_host_reported_first_and_omitted_without_a_report() -> None:
    status = aggregate_status(
        LAYOUT, {host: of_host(host, runs=(RUN,) * (host == "beta")) for host in ("gamma", "beta", "alpha")}
    )
    assert [task.short for task in status.tasks] == ["ps:0", "worker:0", "worker:1"]
    assert [host.host for host in status.hosts] == ["gamma", "beta", "alpha"]
    assert (status.state, status.runs) == (ClusterState.RUNNING, (RUN,))
    assert [task.short for task in aggregate_status(LAYOUT, {"beta": of_host("beta")}).tasks] == ["worker:0"]


def test_tasks_of_an_unreachable_host_are_unresponsive() -> None:
    status = aggregate_status(
        LAYOUT, {"alpha": of_host("alpha"), "beta": HostState.UNREACHABLE, "gamma": HostState.DOWN}
    )
    assert status.hosts[1:] == (
        HostStatus("beta", HostState.UNREACHABLE, None, None),
        HostStatus("gamma", HostState.DOWN, None, None),
    )
    assert [(task.short, task.state, task.pid) for task in status.tasks] == [
        ("ps:0", TaskState.READY, 1),
        ("worker:0", TaskState.UNRESPONSIVE, None),
        ("worker:1", TaskState.STOPPED, None),
    ]
    assert status.tasks[1].address == "10.0.0.2:2222"
    assert status.state is ClusterState.DEGRADED


def test_what_still_runs_of_an_older_layout_is_not_hidden() -> None:
    old = replace(LAYOUT.tasks[2], index=9)
    status = aggregate_status(
        LAYOUT, {host.name: of_host(host.name) for host in LAYOUT.hosts} | {"gamma": of_host("gamma", old)}
    )
    assert [(task.short, task.state.value) for task in status.tasks][2:] == [
        ("worker:1", "stopped"),
        ("worker:9", "ready"),
    ]
