"""Which run a name means on a cluster of several hosts, and what the hosts say of a script that waits."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster.client.cluster import Cluster
from tfcluster.client.runs.locate import locate_run
from tfcluster.client.runs.wait_diagnosis import ask_hosts
from tfcluster.client.tensorboard import find_folders
from tfcluster.core.states import TaskState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.processes import TaskThreadsReply, TaskThreadsRequest


class Hosts:
    """A cluster whose hosts list these runs; a host without a list cannot be reached."""

    def __init__(self, runs: Mapping[str, list[str] | None], head: str = "alpha") -> None:
        self._runs = runs
        self.head = head
        self.hosts = list(runs)
        self.asked: list[str] = []

    def led_by(self, host: str) -> Hosts:
        return Hosts(self._runs, host)

    def connect(self, host: str) -> Any:
        def call(request: object, **options: object) -> Any:
            self.asked.append(host)
            names = self._runs[host]
            if names is None:
                raise ClusterError(f"host {host!r} cannot be reached", exit_code=ExitCode.UNREACHABLE)
            runs = [SimpleNamespace(run=name, parameters={"logdir": f"/{host}"}) for name in names]
            return SimpleNamespace(runs=runs, state="/state")

        return SimpleNamespace(call=call, transport=SimpleNamespace(has_state=lambda: True))

    def connect_head(self) -> Any:
        return self.connect(self.head)


def locate(hosts: Hosts, name: str) -> tuple[str, str]:
    leader, identity = locate_run(cast(Cluster, hosts), name, start=True)
    return leader.head, identity


def test_a_name_is_not_taken_for_the_beginning_of_another_hosts_run() -> None:
    hosts = Hosts({"alpha": ["baseline-1a2b"], "beta": ["base-3f9a"]})
    assert locate(hosts, "base") == ("beta", "base-3f9a")
    assert locate(hosts, "baseline") == ("alpha", "baseline-1a2b")
    assert locate(hosts, "base-") == ("beta", "base-3f9a")
    assert locate(hosts, "unknown") == ("alpha", "unknown")
    with pytest.raises(ClusterError, match="several runs begin with 'bas': base-3f9a, baseline-1a2b"):
        locate(hosts, "bas")


def test_an_id_of_the_heads_is_asked_of_no_other_host_and_a_run_is_found_while_the_head_is_away() -> None:
    hosts = Hosts({"alpha": ["pi-1a2b"], "beta": None})
    assert locate(hosts, "pi-1a2b") == ("alpha", "pi-1a2b")
    assert hosts.asked == ["alpha"]
    hosts = Hosts({"alpha": None, "beta": ["pi-1a2b"]})
    assert locate(hosts, "pi") == ("beta", "pi-1a2b")
    with pytest.raises(ClusterError, match="cannot be reached, and no other host has a run 'mean'"):
        locate(hosts, "mean")


def test_tensorboard_finds_a_run_by_its_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SimpleNamespace(state="/state")
    monkeypatch.setattr("tfcluster.client.tensorboard.request_environment", lambda cluster, target: environment)
    cluster = cast(Cluster, Hosts({"alpha": ["baseline-1a2b", "base-3f9a"]}))
    (found,) = find_folders(cluster, "base")
    assert found.name == "base-3f9a"
    with pytest.raises(ClusterError, match="there is no folder and no run 'mean'"):
        find_folders(cluster, "mean")


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
        return SimpleNamespace(status=SimpleNamespace(hosts=[SimpleNamespace(tensorflow=versions[host == "beta"])]))

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
