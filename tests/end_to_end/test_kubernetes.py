"""Clusters of pods over a played kubectl: from the manifests to the end, edits, and what a person must act on."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import kubernetes
from tests.conftest import BARE_FORK_SERVER, LAZY_FORK_SERVER, ROOT
from tests.end_to_end.test_ssh import Over, over

NAMES = ("train-0", "train-1", "train-2")
JOBS = "jobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def text(pods: int, image: str = "tensorflow/tensorflow:2.21.0", more: str = "") -> str:
    request = f"{{pods: {pods}, image: {image}, namespace: ml{more}}}"
    return f"name: train\nkubernetes: {request}\nhost: {{python: {sys.executable}}}\n{JOBS}"


class Pods:
    """The played kubectl on a network of hosts, which are its pods."""

    def __init__(self, sandbox: Over, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        hosts = sandbox.network
        names = "".join(f"{hosts.address(name)} {name}.train.ml.svc\n" for name in NAMES)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        program = shlex.join([sys.executable, kubernetes.__file__, str(folder)])
        path = hosts.folder / "bin" / "kubectl"
        path.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        path.chmod(0o755)
        self.change()

    def change(self, **values: Any) -> None:
        """Change what kubectl has: rights that are `forbidden`, or `states` of pods."""
        path = self.folder / "state.json"
        state = json.loads(path.read_text()) if path.exists() else {"objects": {}, "pods": {}}
        path.write_text(json.dumps({"forbidden": [], "states": {}, **state, **values}))

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state


@pytest.fixture
def pods(needs_network: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_CHANGES", json.dumps({**LAZY_FORK_SERVER, **BARE_FORK_SERVER}))
        patch.setenv("PYTHONPATH", str(ROOT))
        with over(tmp_path_factory.mktemp("kube"), *NAMES, has_sshd=False) as sandbox:
            made = Pods(sandbox, tmp_path_factory.mktemp("kubectl"))
            yield made
            made.change(states={})
            sandbox("down", "-c", "train", code=None)


def test_pods_are_hosts_from_up_to_down(pods: Pods) -> None:
    sandbox = pods.sandbox
    up = sandbox("up", sandbox.spec(text(2)))
    assert "a network plugin has to enforce the NetworkPolicy" in up.stderr
    assert [*pods.state()["objects"]] == ["Service/train", "NetworkPolicy/train", "StatefulSet/train"]
    status = sandbox.status()
    assert (status["state"], status["network"]) == ("running", "closed")
    assert {task["address"].rpartition(":")[0] for task in status["tasks"] if task["job"] == "ps"} == {
        "train-0.train.ml.svc"
    }
    assert {task["host"] for task in status["tasks"] if task["job"] == "worker"} == {"pod1"}
    assert sandbox.json("run", "pi", "--samples", "1e5", "--seed", "7")["state"] == "succeeded"

    sandbox("up", sandbox.spec(text(3)), "--yes")  # in place
    assert [*pods.state()["pods"]] == [*NAMES]
    assert {task["host"] for task in sandbox.status()["tasks"]} == {"pod0", "pod1", "pod2"}
    sandbox("up", sandbox.spec(text(2)), "--yes")
    assert [*pods.state()["pods"]] == [*NAMES[:2]]

    refused = sandbox("up", sandbox.spec(text(2, image="tensorflow/tensorflow:2.20.0")), code=2)
    assert "train-0, train-1 must be replaced; LOST: the variables of ps:0" in refused.stderr
    sandbox("down")
    assert pods.state()["objects"] == pods.state()["pods"] == {}


def test_launch_gives_each_member_the_dns_names_of_the_pods(pods: Pods, tmp_path: Path) -> None:
    sandbox = pods.sandbox
    sandbox("up", sandbox.spec(text(3)))
    script = sandbox.spec("import os; print(os.environ['TF_CONFIG'])\n", "show.py")
    lines = sandbox("launch", script).stdout.splitlines()
    configs = [json.loads(line[line.index("{") :]) for line in lines]
    assert {config["task"]["index"] for config in configs} == {0, 1}
    for config in configs:
        hosts = [address.rpartition(":")[0] for address in config["cluster"]["worker"]]
        assert hosts == ["train-1.train.ml.svc", "train-2.train.ml.svc"]
    sandbox("down")


def test_what_a_person_must_act_on_is_named_before_anything_is_applied(pods: Pods) -> None:
    sandbox = pods.sandbox
    pods.change(forbidden=[["create", "services"]])
    failed = sandbox("up", sandbox.spec(text(2)), code=1)
    assert "no right in namespace 'ml' to create services: nothing was applied" in failed.stderr
    pods.change(forbidden=[])
    failed = sandbox("up", sandbox.spec(text(2).replace("namespace: ml", "namespace: absent")), code=2)
    assert "there is no namespace 'absent'" in failed.stderr
    failed = sandbox("up", sandbox.spec(text(2, more=", context: other")), code=1)
    assert "cannot locate context other" in failed.stderr
    assert pods.state()["objects"] == {}


def test_a_container_that_crashes_ends_the_wait(pods: Pods) -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    pods.change(states={"train-1": {"containerStatuses": [{"state": {"waiting": waiting}}]}})
    failed = pods.sandbox("up", pods.sandbox.spec(text(2)), code=1)
    assert "pod train-1: CrashLoopBackOff: back-off 10s restarting failed container" in failed.stderr
    assert "kubectl logs train-1 --previous" in failed.stderr


def test_a_launch_touches_no_pods_of_another_one(pods: Pods) -> None:
    sandbox = pods.sandbox
    labels = {"app.kubernetes.io/managed-by": "tfcluster", "app.kubernetes.io/instance": "train"}
    there = {"kind": "StatefulSet", "metadata": {"name": "train", "labels": labels}, "spec": {"replicas": 2}}
    pods.change(objects={"StatefulSet/train": there})
    sandbox.spec("print(1)\n", "one.py")
    failed = sandbox("launch", "--spec", sandbox.spec(text(2)), "one.py", code=2)
    assert "has pods of a cluster 'train' that was not started from here" in failed.stderr
    assert [*pods.state()["objects"]] == ["StatefulSet/train"]
