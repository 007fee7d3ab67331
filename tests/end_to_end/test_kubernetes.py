"""Clusters of pods over a played kubectl: from the manifests to the end, edits, and what a person must act on."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
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

    before = pods.state()
    other = sandbox.spec(text(2, image="tensorflow/tensorflow:2.20.0"))
    lost = "train-0, train-1 must be replaced; LOST: the variables of ps:0"
    assert lost in sandbox("up", other, "--dry-run").stderr
    assert lost in sandbox("up", other, code=2).stderr
    assert pods.state() == before, "what was refused leaves nothing"
    wider = sandbox("up", sandbox.spec(text(3, image="tensorflow/tensorflow:2.20.0")), "--dry-run")
    assert lost in wider.stderr
    assert "replicas: 3" in wider.stdout
    moved = sandbox("up", sandbox.spec(text(2).replace("namespace: ml", "namespace: other")), "--dry-run", code=2)
    assert "or has its pods in another namespace or context" in moved.stderr
    replaced = sandbox("up", sandbox.spec(text(2, image="tensorflow/tensorflow:2.20.0")), "--yes")
    assert lost in replaced.stderr
    assert {pods.state()["pods"][name] for name in NAMES[:2]}.isdisjoint(before["pods"].values())
    sandbox("up", sandbox.spec(text(2)), "--yes")
    assert sandbox("up", sandbox.spec(text(2)), "--dry-run").stdout == "train is up already: nothing to do\n"
    sandbox("down")
    assert pods.state()["objects"] == pods.state()["pods"] == {}


@pytest.mark.slow
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
    failed = sandbox("up", sandbox.spec(text(2, more=", context: other")), code=2)
    assert "kubectl has no context 'other'" in failed.stderr
    assert pods.state()["objects"] == {}


WAITING = {
    "pod train-1: Pending: Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.": {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available:\n3 Insufficient nvidia.com/gpu.",
            }
        ]
    },
    "pod train-1: ImagePullBackOff: Back-off pulling image": {
        "containerStatuses": [
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}
        ]
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("line", WAITING)
def test_up_says_what_a_pod_waits_for_and_continues_when_it_runs(pods: Pods, line: str) -> None:
    pods.change(states={"train-1": WAITING[line]})
    up = pods.sandbox.start("up", pods.sandbox.spec(text(2)))
    assert up.stderr is not None
    assert line in iter(lambda: up.stderr and up.stderr.readline().strip(), "")
    pods.change(states={})
    up.communicate(timeout=90)
    assert up.returncode == 0


@pytest.mark.slow
def test_up_says_why_a_pod_is_not_made(pods: Pods) -> None:
    message = 'create Pod train-1 in StatefulSet train failed error: pods "train-1" is forbidden: exceeded quota: pods'
    pods.change(quota=1, events=[{"type": "Warning", "reason": "FailedCreate", "message": message}])
    up = pods.sandbox.start("up", pods.sandbox.spec(text(2)))
    assert up.stderr is not None
    assert f"train: FailedCreate: {message}" in iter(lambda: up.stderr and up.stderr.readline().strip(), "")
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=60)
    assert [*pods.state()["objects"]], "Ctrl-C leaves what was applied, for the next `up`"
    pods.sandbox("down", "-c", "train")
    assert pods.state()["objects"] == {}


@pytest.mark.slow
def test_what_the_image_lacks_is_named_with_the_lines_that_add_it(pods: Pods) -> None:
    bare = pods.sandbox.folder / "bare-python"  # a Python without packages
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    failed = pods.sandbox("up", pods.sandbox.spec(text(1).replace(sys.executable, str(bare))), code=1)
    assert "host 'pod0': TensorFlow is not installed for the agent's Python" in failed.stderr
    added = f"    FROM tensorflow/tensorflow:2.21.0\n    RUN {sys.executable} -m pip install tensorflow\n"
    assert added in failed.stderr


def test_a_machine_without_kubectl_or_a_context(pods: Pods) -> None:
    spec = pods.sandbox.spec(text(1))
    (pods.folder / "bin").mkdir()
    (pods.folder / "bin" / "nsenter").symlink_to(str(shutil.which("nsenter")))  # with which the command is started
    failed = pods.sandbox("up", spec, code=1, env={"PATH": str(pods.folder / "bin")})
    assert "there is no kubectl on this machine" in failed.stderr
    pods.change(context="")
    failed = pods.sandbox("up", spec, code=2)
    assert "kubectl has no current context" in failed.stderr
    assert "Name one by `context:` in the spec" in failed.stderr


def test_pods_of_another_persons_cluster_of_that_name_are_not_taken_over(pods: Pods) -> None:
    sandbox = pods.sandbox
    spec = sandbox.spec(text(2))
    # Another machine, or another person.
    elsewhere = {"XDG_STATE_HOME": str(pods.folder / "elsewhere"), "XDG_RUNTIME_DIR": str(pods.folder)}
    sandbox("up", spec)
    before = pods.state()
    refused = sandbox("up", spec, code=2, env=elsewhere)
    assert "namespace 'ml' has pods of a cluster 'train' that was not started from here" in refused.stderr
    assert "if that one is yours, add --yes to continue with it" in refused.stderr
    assert pods.state() == before


def test_a_container_that_crashes_ends_the_wait(pods: Pods) -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    pods.change(states={"train-1": {"containerStatuses": [{"state": {"waiting": waiting}}]}})
    failed = pods.sandbox("up", pods.sandbox.spec(text(2)), code=1)
    assert "pod train-1: CrashLoopBackOff: back-off 10s restarting failed container" in failed.stderr
    assert "kubectl logs train-1 --previous" in failed.stderr


@pytest.mark.slow
def test_a_launch_touches_no_pods_of_another_one(pods: Pods) -> None:
    sandbox = pods.sandbox
    labels = {"app.kubernetes.io/managed-by": "tfcluster", "app.kubernetes.io/instance": "train"}
    there = {"kind": "StatefulSet", "metadata": {"name": "train", "labels": labels}, "spec": {"replicas": 2}}
    pods.change(objects={"StatefulSet/train": there})
    sandbox.spec("print(1)\n", "one.py")
    failed = sandbox("launch", "--spec", sandbox.spec(text(2)), "one.py", code=2)
    assert "has pods of a cluster 'train' that was not started from here" in failed.stderr
    assert [*pods.state()["objects"]] == ["StatefulSet/train"]
