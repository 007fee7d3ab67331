"""What the command adds to the event of a script that waits: what the hosts of the tasks say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster.client.runs.wait_diagnosis import ask_hosts
from tfcluster.core.states import TaskState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.processes import TaskThreadsReply, TaskThreadsRequest

TASK = "/job:worker/task:1"
SEEN = "worker:1 at 10.0.0.2:2222 on beta refuses connections"
EVENT = {
    "event": "waiting",
    "call": "Session.run",
    "file": "/home/me/train.py",
    "line": 12,
    "function": "main",
    "seconds": 4.0,
    "message": f"train.py:12 waits in Session.run: {SEEN}",
    "problems": [{"problem": SEEN, "hint": "look", "task": TASK, "host": "beta"}],
}


def ask(problem: str | None, versions: tuple[str, str] = ("2.21.0", "2.21.0")) -> dict[str, Any]:
    """The event after host beta has said what is wrong with the task; None if it cannot be reached."""

    def call(host: str, request: Any) -> Any:
        if host == "beta" and problem is None:
            raise ClusterError("host 'beta' cannot be reached", exit_code=ExitCode.UNREACHABLE)
        if isinstance(request, TaskThreadsRequest):
            assert (host, request.task) == ("beta", TASK)
            return TaskThreadsReply(TASK, host, TaskState.READY, 7, problem or "", "type this", (), ())
        return SimpleNamespace(name="demo", hosts=[SimpleNamespace(tensorflow=versions[host == "beta"])])

    def connect(host: str) -> Any:
        return SimpleNamespace(call=lambda request: call(host, request))

    cluster: Any = SimpleNamespace(name="demo", hosts={"alpha": None, "beta": None}, head="alpha", connect=connect)
    return ask_hosts(cluster, EVENT)


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ("worker:1 on beta died and is backing off", "worker:1 on beta died and is backing off", "type this"),
        ("", f"{SEEN}, although it answers on beta", "Let alpha connect to it; `tfcluster doctor`"),
        (None, f"{SEEN} (host 'beta' cannot be reached)", "look"),
    ],
)
def test_the_host_of_the_task_knows_what_is_wrong(said: str | None, message: str, hint: str) -> None:
    event = ask(said)
    assert event["message"] == f"train.py:12 waits in Session.run: {message}"
    (problem,) = event["problems"]
    assert problem["problem"] == message
    assert problem["hint"].startswith(hint)


def test_another_tensorflow_is_named() -> None:
    event = ask("worker:1 on beta is starting", ("2.21.0", "2.20.0"))
    assert event["message"].endswith("worker:1 on beta is starting; host beta runs TensorFlow 2.20.0, alpha 2.21.0")
    assert "pip install tensorflow==2.21.0" in event["problems"][-1]["hint"]
