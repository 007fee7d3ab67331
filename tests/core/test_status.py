"""The JSON of `status`: exactly the keys of the contract, and readable again."""

from __future__ import annotations

import json

from tfcluster.core.states import ClusterState, RunState, TaskState
from tfcluster.core.status import ClusterStatus, HostStatus, LastExit, RunStatus, TaskStatus, TrafficTotals
from tfcluster.protocol.serialization import decode, to_json

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
    traffic=TrafficTotals(10, 20),
    gpu_memory_bytes=4096,
)
FAILED = TaskStatus(
    task="/job:worker/task:1",
    job="worker",
    index=1,
    host="localhost",
    address="localhost",
    state=TaskState.BACKING_OFF,
    pid=None,
    restarts=0,
    uptime_s=None,
    cpu_percent=None,
    rss_bytes=None,
    devices=(),
    last_exit=None,
)
STATUS = ClusterStatus(
    cluster="demo",
    state=ClusterState.DEGRADED,
    spec="cluster.yaml",
    hosts=(HostStatus("localhost", "up", 16, "2.21.0"),),
    tasks=(READY, FAILED),
    runs=(RunStatus("pi-3f9a", "pi", RunState.CANCELLED, 0.4),),
)


def test_the_json_is_the_contract() -> None:
    assert json.loads(json.dumps(to_json(STATUS))) == {
        "cluster": "demo",
        "state": "degraded",
        "spec": "cluster.yaml",
        "hosts": [{"host": "localhost", "state": "up", "agent_pid": 16, "tensorflow": "2.21.0", "load": None}],
        "tasks": [
            {
                "task": "/job:worker/task:0",
                "job": "worker",
                "index": 0,
                "host": "localhost",
                "address": "localhost:2223",
                "state": "ready",
                "pid": 17,
                "restarts": 1,
                "uptime_s": 1.5,
                "cpu_percent": 99.5,
                "rss_bytes": 1024,
                "devices": ["/job:worker/replica:0/task:0/device:CPU:0"],
                "last_exit": {
                    "reason": "SIGKILL",
                    "time": 12.5,
                    "detail": "what it said",
                    "log": ["its last"],
                    "expected": False,
                },
                "traffic": {"received_bytes": 10, "sent_bytes": 20},
                "gpu_memory_bytes": 4096,
            },
            {
                "task": "/job:worker/task:1",
                "job": "worker",
                "index": 1,
                "host": "localhost",
                "address": "localhost",
                "state": "backing-off",
                "pid": None,
                "restarts": 0,
                "uptime_s": None,
                "cpu_percent": None,
                "rss_bytes": None,
                "devices": [],
                "last_exit": None,
                "traffic": None,
                "gpu_memory_bytes": None,
            },
        ],
        "runs": [
            {
                "run": "pi-3f9a",
                "program": "pi",
                "script": None,
                "state": "cancelled",
                "seconds": 0.4,
                "gpu_memory_bytes": None,
            }
        ],
        "network": "closed",
        "job": None,
    }


def test_a_status_survives_json() -> None:
    assert decode(ClusterStatus, json.loads(json.dumps(to_json(STATUS)))) == STATUS


def test_a_task_has_its_short_name() -> None:
    assert FAILED.short == "worker:1"
