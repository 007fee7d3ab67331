"""A cluster of pods on a real Kubernetes, that of $KUBECONFIG, in a namespace of its own: `make test-kubernetes`.

IMAGE names the image of the pods, which has sh, Python and TensorFlow. It is no part of `make test`, which has no
Kubernetes; there a program plays kubectl (tests/end_to_end/test_kubernetes.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Sandbox, make_sandbox, read_until, wait_for

IMAGE = os.environ.get("IMAGE", "tensorflow/tensorflow:2.21.0")
#: For a pod to start, with an image that a node may have to pull.
START_SECONDS = 900.0
WAIT = "import time, tfcluster\nprint('started', flush=True)\ntime.sleep(600)\n"
#: A container that does not end by SIGTERM, as a proxy that something in the cluster adds to each pod.
SIDECAR = {"name": "proxy", "image": IMAGE, "command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]}


def kubectl(*arguments: str, stdin: str = "") -> str:
    result = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, f"{arguments}: {result.stderr}"
    return result.stdout


@dataclass(frozen=True)
class Pods:
    """A namespace, and a sandbox to type commands in."""

    sandbox: Sandbox
    namespace: str

    def spec(self, pods: int, more: str = "", name: str = "cluster.yaml") -> Path:
        request = f"{{pods: {pods}, image: '{IMAGE}', namespace: {self.namespace}, memory: 2Gi{more}}}"
        jobs = "{ps: {tasks: 1}, worker: {tasks: 2}}"
        return self.sandbox.spec(f"name: train\nkubernetes: {request}\njobs: {jobs}\n", name)

    def up(self, *arguments: str | Path, code: int = 0) -> Any:
        return self.sandbox("up", *arguments, "--timeout", "180", code=code, timeout=START_SECONDS)

    def uid(self, pod: str) -> str:
        return kubectl("-n", self.namespace, "get", "pod", pod, "--output=jsonpath={.metadata.uid}")

    def replace(self, pod: str) -> None:
        """Delete a pod, and wait until another one runs in its place."""
        before = self.uid(pod)
        kubectl("-n", self.namespace, "delete", "pod", pod, "--grace-period=1")
        wait_for(lambda: self._state(pod) not in (None, (before, "Running")) and self._state(pod)[1] == "Running", 300)

    def _state(self, pod: str) -> Any:
        shown = kubectl("-n", self.namespace, "get", "pod", pod, "--ignore-not-found", "--output=json")
        found = json.loads(shown) if shown else None
        return None if found is None else (found["metadata"]["uid"], found["status"]["phase"])

    def objects(self) -> str:
        """Everything of tfcluster in the namespace, and the pods."""
        kinds = "statefulsets,services,networkpolicies,configmaps,secrets,pods"
        selector = "--selector=app.kubernetes.io/instance=train"
        return kubectl("-n", self.namespace, "get", kinds, selector, "--output=name")


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    if "KUBECONFIG" not in os.environ or shutil.which("kubectl") is None:
        pytest.skip("KUBECONFIG names no Kubernetes, or there is no kubectl")
    namespace = f"tfcluster-test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", namespace)
    try:
        with make_sandbox(tmp_path) as sandbox:
            found = Pods(sandbox, namespace)
            yield found
            sandbox("down", "-c", "train", "--yes", code=None, timeout=300)
            wait_for(lambda: not found.objects(), 300)
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false")


def test_up_run_launch_an_edit_and_down(pods: Pods) -> None:
    sandbox, spec = pods.sandbox, pods.spec(2)
    checks = sandbox.json("doctor", spec)["checks"]
    assert [(check["check"], check["ok"]) for check in checks] == [("kubernetes", True)]
    pods.up(spec)
    status = sandbox.status()
    assert (status["state"], {task["host"] for task in status["tasks"]}) == ("running", {"pod0", "pod1"})
    assert "is up already" in pods.up(spec).stdout
    assert all(check["ok"] for check in sandbox.json("doctor", spec)["checks"])
    result = sandbox.json_lines("run", "pi", "--samples", "1e6")[-1]["result"]
    assert 3.1 < result["pi"] < 3.2
    script = sandbox.spec("import json, os\nprint(json.loads(os.environ['TF_CONFIG'])['task'])\n", "member.py")
    assert "'type': 'worker'" in sandbox("launch", script, timeout=180).stdout
    assert sandbox("exec", "--on", "pod1", "--", "hostname").stdout == "train-1\n"

    wider = pods.spec(3, name="wider.yaml")
    pods.up(wider, "--replace-spec", "--yes")
    assert len(sandbox.status()["hosts"]) == 3
    edited = pods.spec(3, ", cpu: 100m", name="edited.yaml")
    refused = pods.up(edited, "--replace-spec", code=2).stderr
    assert "train-0, train-1, train-2 must be replaced; LOST: the variables of ps:0" in refused
    before = pods.uid("train-0")
    pods.up(edited, "--replace-spec", "--yes")
    assert pods.uid("train-0") != before
    sandbox("down", "--yes", timeout=300)
    wait_for(lambda: not pods.objects(), 120)


def test_a_pod_that_is_deleted_loses_its_runs_and_the_new_one_starts_its_tasks(pods: Pods) -> None:
    sandbox = pods.sandbox
    pods.up(pods.spec(2))
    run = sandbox.start("run", sandbox.spec(WAIT, "wait.py"))
    read_until(run.stdout, "started")
    pods.replace("train-1")  # which leads runs: a ps does not
    _, error = run.communicate(timeout=180)
    assert run.returncode == 1
    assert "the pod was deleted" in error or "has come back without its state" in error
    sandbox.wait_until("running", 180)
    assert "is up already" in pods.up().stdout


def test_the_manifests_are_an_up_by_themselves(pods: Pods) -> None:
    sandbox = pods.sandbox
    manifests = sandbox("manifests", pods.spec(2)).stdout
    kubectl("apply", "--server-side", "--filename=-", stdin=manifests)
    sandbox.wait_until("running", START_SECONDS)
    assert 3.1 < sandbox.json_lines("run", "pi", "--samples", "1e6")[-1]["result"]["pi"] < 3.2
    assert "was not started from here" in sandbox("down", code=2).stderr
    sandbox("down", "--yes", timeout=300)
    wait_for(lambda: not pods.objects(), 120)


def test_what_keeps_a_pod_and_what_crashes_in_it_is_named(pods: Pods) -> None:
    sandbox = pods.sandbox
    absent = sandbox.start("up", pods.spec(1, ", storage: 1Gi"))
    shown = read_until(absent.stderr, "pod train-0: ")[-1]
    assert shown.startswith("pod train-0: ")
    absent.terminate()
    absent.communicate(timeout=60)
    sandbox("down", "--yes", timeout=300)
    wait_for(lambda: not pods.objects(), 120)

    pods.up(pods.spec(1))
    patch = {"spec": {"template": {"spec": {"containers": [SIDECAR], "terminationGracePeriodSeconds": 30}}}}
    kubectl("-n", pods.namespace, "patch", "statefulset", "train", "--patch", json.dumps(patch))
    pods.replace("train-0")
    sandbox("down", "--yes", timeout=300)
    waiting = sandbox.start("up", pods.spec(1))
    shown = read_until(waiting.stderr, "for 30 s at most")[-1]
    assert re.search(r"pod train-0 is being deleted: containers? .*proxy.* still runs?, for 30 s at most", shown)
    assert waiting.wait(START_SECONDS) == 0


def test_without_access_nothing_is_half_down_and_another_machine_can_delete_the_pods(pods: Pods) -> None:
    sandbox, spec = pods.sandbox, pods.spec(1)
    pods.up(spec)
    failed = sandbox("down", "--yes", code=None, env={"KUBECONFIG": str(sandbox.folder / "absent")})
    assert failed.returncode in (2, 5)
    assert sandbox.status()["state"] == "running"
    elsewhere = {"XDG_STATE_HOME": str(sandbox.folder / "elsewhere")}
    refused = sandbox("down", spec, code=2, env=elsewhere).stderr
    assert "was not started from here" in refused
    sandbox("down", spec, "--yes", env=elsewhere, timeout=300)
    wait_for(lambda: not pods.objects(), 120)
    assert "no pods of it were found" in sandbox("down", spec, code=3, env=elsewhere).stderr
