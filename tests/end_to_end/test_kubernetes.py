"""Clusters of pods over a played kubectl: from the manifests to the end, edits, and what a person must act on."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SCRIPTS, read_until, wait_for
from tests.end_to_end.sites import POD_NAMES, Pods
from tests.end_to_end.ways import check_way

#: The objects in which the pods find tfcluster and their tasks.
STARTS = {"ConfigMap/train-tfcluster-code", "ConfigMap/train-tfcluster-topology"}
JOBS = "jobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"


def text(pods: int, image: str = "tensorflow/tensorflow:2.21.0", more: str = "") -> str:
    request = f"{{pods: {pods}, image: {image}, namespace: ml{more}}}"
    return f"name: train\nkubernetes: {request}\nhost: {{python: {sys.executable}}}\n{JOBS}"


def foreign_object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """An object of a cluster that another machine has started."""
    labels = {"app.kubernetes.io/managed-by": "tfcluster", "app.kubernetes.io/instance": name}
    return {"kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}


MEET = (SCRIPTS / "meet.py").read_text()


def test_pods_are_hosts_from_up_to_down(pods: Pods) -> None:
    sandbox = pods.sandbox
    foreign = {"Service/web": foreign_object("Service", "web", {})}
    pods.change(objects=foreign)
    up = sandbox("up", sandbox.spec(text(2)))
    assert "a network plugin has to enforce the NetworkPolicy" in up.stderr
    assert {*pods.state()["objects"]} == {
        *foreign,
        *STARTS,
        *("Service/train", "NetworkPolicy/train", "StatefulSet/train"),
    }
    status = sandbox.status()
    assert (status["state"], status["network"]) == ("running", "closed")
    assert {task["address"].rpartition(":")[0] for task in status["tasks"] if task["job"] == "ps"} == {
        "train-0.train.ml.svc"
    }
    assert {task["host"] for task in status["tasks"] if task["job"] == "worker"} == {"pod1"}

    script = sandbox.spec("import os, socket; print('on', socket.gethostname(), os.getuid())\n", "where.py")
    assert "on train-1 1000\n" in sandbox("run", script).stdout
    assert "Started server with target" in sandbox("logs", "worker:1").stdout
    shown = sandbox("exec", "--on", "pod1", "--", "sh", "-c", "echo $(hostname) $HOME; exit 7", code=7)
    assert shown.stdout == "train-1 /home/tfcluster\n"
    wait_for(lambda: pods.ready() == {*POD_NAMES[:2]})
    sandbox("run", "--detach", sandbox.spec("import time\ntime.sleep(600)\n", "waits.py"))
    sandbox("down", "--yes")
    wait_for(lambda: not pods.state()["pods"])
    assert pods.state()["objects"] == foreign
    pods.change(objects={})


@pytest.mark.slow
def test_all_that_a_command_does_in_a_pod(pods: Pods) -> None:
    pods.sandbox("up", pods.sandbox.spec(text(2)))
    check_way(pods.sandbox, "train", "pod1")


@pytest.mark.slow
def test_scale_changes_no_pods_and_an_edit_adds_and_removes_some_after_a_question(pods: Pods) -> None:
    sandbox = pods.sandbox
    sandbox("up", sandbox.spec(text(2)))
    before, objects = pods.addresses(), pods.state()["objects"]
    sandbox("scale", "worker=1")
    assert {task["host"] for task in sandbox.status()["tasks"]} == {"pod0", "pod1"}
    scaled = pods.state()["objects"]
    changed = {name for name, each in scaled.items() if each != objects.get(name)}
    assert changed == {"ConfigMap/train-tfcluster-topology"}, "scale changes tasks, not pods"

    wider = sandbox.spec(text(3))
    lost = "train-0.train.ml.svc:2222: it must know the address of worker:1; LOST: the variables of ps:0"
    shown = sandbox("up", wider, "--dry-run")
    assert lost in shown.stderr
    assert "replicas: 3" in shown.stdout
    assert lost in sandbox("up", wider, code=2).stderr
    assert pods.state()["objects"] == scaled, "what was refused leaves nothing"

    sandbox("up", wider, "--yes")
    assert {task["host"] for task in sandbox.status()["tasks"]} == {"pod0", "pod1", "pod2"}
    sandbox("up", sandbox.spec(text(2)), "--yes")
    wait_for(lambda: pods.state()["pods"].keys() == {*POD_NAMES[:2]})
    assert pods.addresses() == before, "none was replaced"


#: A program that has two seconds of work after SIGTERM.
SAVE = (SCRIPTS / "saves_when_told.py").read_text()


@pytest.mark.slow
def test_a_pod_that_is_deleted_is_a_host_that_was_rebooted(pods: Pods) -> None:
    sandbox = pods.sandbox
    sandbox("up", sandbox.spec(text(2, more=", storage: 1Gi")))
    before = pods.addresses()
    saving = sandbox.start("run", sandbox.spec(SAVE, "save.py"))  # in the pod of worker:0
    read_until(saving.stdout, "started")
    pods.kubectl("delete", "pods", "train-1", "--wait=false")
    output, errors = saving.communicate(timeout=90)
    assert "saved" in output
    assert "error: the pod was deleted" in errors
    assert "hint: `tfcluster up`, then `tfcluster rerun`." in errors
    wait_for(lambda: pods.is_replaced("train-1", before))
    sandbox.wait_until("running")
    assert sandbox.task("worker:0")["restarts"] == 1
    assert [run["state"] for run in sandbox.json("runs")] == ["failed"]

    os.kill(pods.state()["pods"]["train-0"]["pid"], signal.SIGKILL)  # the container alone is restarted
    wait_for(lambda: pods.state()["pods"]["train-0"]["restarts"])
    sandbox.wait_until("running")
    assert sandbox.task("ps:0")["restarts"] == 1


@pytest.mark.slow
def test_a_pod_without_storage_that_is_deleted_starts_its_tasks_again_by_itself(pods: Pods) -> None:
    sandbox = pods.sandbox
    spec = sandbox.spec(text(2).replace("worker: {tasks: 2}", "worker: {tasks: 2, max: 4, env: {A: {secret: xyzzy}}}"))
    sandbox("up", spec)
    stored = pods.state()["objects"]
    for kind, name in (("configmaps", "train-tfcluster-topology"), ("secrets", "train-tfcluster-secrets")):
        pods.kubectl("delete", kind, name)
    assert "is up already" in sandbox("up", spec).stdout
    assert pods.state()["objects"] == stored, "what was lost is applied again"
    sandbox("scale", "worker=3")
    before, tasks = pods.addresses(), sandbox.status()["tasks"]
    pods.kubectl("delete", "pods", "train-1", "--wait=false")
    wait_for(lambda: pods.is_replaced("train-1", before))
    sandbox.wait_until("running")
    last_exits = {task["host"]: task["last_exit"] for task in sandbox.status()["tasks"]}
    assert last_exits["pod0"] is None
    assert last_exits["pod1"]["reason"] == "host replaced"
    assert [task["address"] for task in sandbox.status()["tasks"]] == [task["address"] for task in tasks]
    script = sandbox.spec("import os\nprint('A is', os.environ['A'])\n", "secret.py")
    assert "A is xyzzy" in sandbox("launch", script).stdout


@pytest.mark.slow
def test_the_manifests_are_an_up_by_themselves(pods: Pods) -> None:
    sandbox = pods.sandbox
    spec = sandbox.spec(text(2))
    manifests = sandbox("manifests", spec).stdout
    pods.kubectl("apply", "--server-side", "--field-manager=flux", "--filename=-", stdin=manifests)
    sandbox.wait_until("running")
    assert 3.1 < sandbox.json_lines("run", "pi", "--samples", "1e5")[-1]["result"]["pi"] < 3.2
    assert "was not started from here: all that runs there would end" in sandbox("down", code=2).stderr
    sandbox("down", "--yes")
    wait_for(lambda: not pods.state()["pods"])
    assert pods.state()["objects"] == {}
    assert "was not started from this machine" in sandbox("status", code=3).stderr


@pytest.mark.slow
def test_an_edit_of_the_pods_replaces_them(pods: Pods) -> None:
    sandbox = pods.sandbox
    sandbox("up", sandbox.spec(text(1)))
    before, revisions = pods.state()["objects"], pods.revisions()
    moved = sandbox("up", sandbox.spec(text(1).replace("namespace: ml", "namespace: other")), "--dry-run", code=2)
    assert "has its pods in another namespace or context" in moved.stderr
    other = sandbox.spec(text(1, image="tensorflow/tensorflow:2.20.0") + "network: open\n")
    lost = "train-0 must be replaced; LOST: the variables of ps:0"
    assert lost in sandbox("up", other, "--dry-run").stderr
    assert lost in sandbox("up", other, code=2).stderr
    assert (pods.state()["objects"], pods.revisions()) == (before, revisions), "what was refused leaves nothing"
    assert lost in sandbox("up", other, "--yes").stderr
    assert {*pods.revisions().values()}.isdisjoint(revisions.values())
    assert pods.state()["objects"].keys() == {*STARTS, "Service/train", "StatefulSet/train"}, "without a NetworkPolicy"
    assert sandbox("up", other, "--dry-run").stdout == "train is up already: nothing to do\n"


@pytest.mark.slow
def test_up_says_why_a_pod_is_not_made(pods: Pods) -> None:
    message = 'create Pod train-1 in StatefulSet train failed error: pods "train-1" is forbidden: exceeded quota: pods'
    pods.change(quota=1, events=[{"type": "Warning", "reason": "FailedCreate", "message": message}])
    up = pods.sandbox.start("up", pods.sandbox.spec(text(2)))
    read_until(up.stderr, f"train: FailedCreate: {message}")
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=60)
    assert [*pods.state()["objects"]], "Ctrl-C leaves what was applied, for the next `up`"
    pods.sandbox("down", "-c", "train")
    assert pods.state()["objects"] == {}


@pytest.mark.slow
def test_what_the_image_lacks_is_named_with_the_lines_that_add_it(pods: Pods) -> None:
    pods.folder.chmod(0o711)  # for the user of the pods
    bare = pods.folder / "bare-python"  # a Python without packages
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    failed = pods.sandbox("up", pods.sandbox.spec(text(1).replace(sys.executable, str(bare))), code=1)
    assert "host 'pod0': TensorFlow is not installed for the agent's Python" in failed.stderr
    added = f"    FROM tensorflow/tensorflow:2.21.0\n    RUN {sys.executable} -m pip install tensorflow\n"
    assert added in failed.stderr


@pytest.mark.slow
def test_a_launch_with_its_own_pods_gives_each_member_their_names_and_deletes_them(pods: Pods) -> None:
    sandbox = pods.sandbox
    launched = sandbox("launch", "--spec", sandbox.spec(text(3)), sandbox.spec(MEET, "meet.py")).stdout.splitlines()
    configs = [json.loads(line[line.index("{") :]) for line in launched if "{" in line]
    assert {config["task"]["index"] for config in configs} == {0, 1}
    for config in configs:
        hosts = [address.rpartition(":")[0] for address in config["cluster"]["worker"]]
        assert hosts == ["train-1.train.ml.svc", "train-2.train.ml.svc"]
    wait_for(lambda: not pods.state()["pods"])
    assert pods.state()["objects"] == {}


@pytest.mark.slow
def test_members_of_a_launch_save_their_state_when_one_of_their_pods_is_deleted(pods: Pods) -> None:
    sandbox = pods.sandbox
    sandbox("up", sandbox.spec(text(3)))
    launch = sandbox.start("launch", sandbox.spec(SAVE, "save.py"))
    read_until(launch.stdout, "started")
    read_until(launch.stdout, "started")
    pods.kubectl("delete", "pods", "train-2", "--wait=false")
    output, errors = launch.communicate(timeout=90)
    assert {"worker:0 | saved", "worker:1 | saved"} <= {*output.splitlines()}
    assert "error: the connection to host pod2 is lost" in errors
    assert launch.returncode


@pytest.mark.slow
def test_down_without_access_stops_nothing_and_from_another_machine_it_asks(pods: Pods) -> None:
    sandbox = pods.sandbox
    spec = sandbox.spec(text(2), "pods.yaml")
    sandbox("up", spec)
    run = sandbox.start("run", sandbox.spec("import time\nprint('started', flush=True)\ntime.sleep(600)\n", "wait.py"))
    read_until(run.stdout, "started")
    unauthorized = "You must be logged in to the server (Unauthorized)"
    pods.change(error=f"error: {unauthorized}")
    failed = sandbox("down", "--yes", code=5)
    assert f"error: nothing was stopped: kubectl failed: {unauthorized}\n" in failed.stderr
    assert "`kubectl --context=prod auth whoami` shows whether your login is still valid" in failed.stderr
    pods.change(error="", forbidden=[["delete", "statefulsets"]])
    failed = sandbox("down", "--yes", code=1)
    assert "no right in namespace 'ml' to delete statefulsets.apps: nothing was stopped" in failed.stderr
    pods.change(forbidden=[])

    elsewhere = {"XDG_STATE_HOME": str(pods.folder / "elsewhere"), "XDG_RUNTIME_DIR": str(pods.folder)}
    unknown = sandbox("down", "-c", "train", code=3, cwd=Path("/"), env=elsewhere).stderr
    assert "One that another machine has started is found with its file: `tfcluster down SPEC`." in unknown
    refused = sandbox("down", spec, code=2, env=elsewhere).stderr
    foreign = "cluster 'train', in pods of namespace 'ml', was not started from here: all that runs there would end"
    assert foreign in refused
    assert sandbox.status()["state"] == "running"
    assert [each["state"] for each in sandbox.json("runs")] == ["running"]
    sandbox("down", spec, "--yes", env={**elsewhere, "TFCLUSTER_CLUSTER": "other"})
    run.communicate(timeout=90)
    assert run.returncode
    wait_for(lambda: not pods.state()["pods"])
    assert pods.state()["objects"] == {}
    sandbox("down", code=None)


@pytest.mark.slow
def test_volumes_stay_after_down_and_an_edit_of_them_is_refused(pods: Pods) -> None:
    sandbox = pods.sandbox
    spec = sandbox.spec(text(1, more=", storage: 1Gi"))
    sandbox("up", spec)
    sandbox("run", sandbox.spec("print('kept')\n", "one.py"))
    [run] = [each["run"] for each in sandbox.json("runs")]
    edited = sandbox.spec(text(1, more=", storage: 2Gi"), "edited.yaml")
    refused = sandbox("up", edited, "--replace-spec", "--yes", code=2)
    message = "Kubernetes forbids a change of `storage:` while the pods of 'train' exist: nothing was"
    assert message in refused.stderr
    sandbox("down")
    wait_for(lambda: not pods.state()["pods"])
    assert [*pods.state()["objects"]] == ["PersistentVolumeClaim/home-train-0"]
    sandbox("up", spec)
    assert [each["run"] for each in sandbox.json("runs")] == [run]
    assert "kept" in sandbox("logs", run).stdout
    sandbox("down")
    command = refused.stderr.partition("runs: `kubectl ")[2].partition("`")[0]
    pods.kubectl(*shlex.split(command))
    assert pods.state()["objects"] == {}


@pytest.mark.slow
def test_an_exported_job_runs_its_program_once_for_each_task(pods: Pods) -> None:
    jobs = "jobs: {ps: {tasks: 1}, worker: {tasks: 1}, evaluator: {tasks: 1}}\n"
    spec = pods.sandbox.spec(text(1).replace(JOBS, jobs))
    manifests = pods.sandbox("manifests", "--export", "job", spec, sys.executable, "-c", MEET).stdout
    pods.kubectl("apply", "--server-side", "--field-manager=me", "--filename=-", stdin=manifests)

    def ended() -> bool:
        found = json.loads(pods.kubectl("get", "pods", "--output=json"))["items"]
        return all(pod["status"]["phase"] == "Succeeded" for pod in found)

    wait_for(ended)
    configs = [json.loads((pods.folder / f"{name}.log").read_text()) for name in POD_NAMES]
    assert [config["task"]["type"] for config in configs] == ["ps", "worker", "evaluator"]
    for config in configs:
        assert config["cluster"] == {"ps": ["train-0.train:2222"], "worker": ["train-1.train:2222"]}
    pods.kubectl("delete", "jobs,services,networkpolicies", "--selector=app.kubernetes.io/instance=train")
    wait_for(lambda: not pods.state()["pods"])
