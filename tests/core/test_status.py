"""The JSON of `status`: exactly the keys of the contract, and readable again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

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
_OTHER: dict[str, Any] = {
    **dict.fromkeys(("pid", "uptime_s", "cpu_percent", "rss_bytes", "last_exit", "traffic", "gpu_memory_bytes")),
    **{"task": "/job:worker/task:1", "index": 1, "address": "localhost", "restarts": 0, "devices": ()},
}
FAILED = replace(READY, state=TaskState.BACKING_OFF, **_OTHER)
STATUS = ClusterStatus(
    cluster="demo",
    state=ClusterState.DEGRADED,
    spec="cluster.yaml",
    hosts=(HostStatus("localhost", "up", 16, "2.21.0"),),
    tasks=(READY, FAILED),
    runs=(RunStatus("pi-3f9a", "pi", RunState.CANCELLED, 0.4),),
)


def test_the_json_is_the_contract_and_survives() -> None:
    as_json = json.loads(json.dumps(to_json(STATUS)))
    ready = {
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
    }
    failed = {"task": "/job:worker/task:1", "index": 1, "address": "localhost", "state": "backing-off", "restarts": 0}
    no_script = {"script": None, "gpu_memory_bytes": None}
    assert as_json == {
        "cluster": "demo",
        "state": "degraded",
        "spec": "cluster.yaml",
        "hosts": [{"host": "localhost", "state": "up", "agent_pid": 16, "tensorflow": "2.21.0", "load": None}],
        "tasks": [ready, {**dict.fromkeys(ready), "job": "worker", "host": "localhost", "devices": [], **failed}],
        "runs": [{"run": "pi-3f9a", "program": "pi", "state": "cancelled", "seconds": 0.4, **no_script}],
        "network": "closed",
        "job": None,
    }
    assert decode(ClusterStatus, as_json) == STATUS
