"""What commands ask and refuse before they touch pods; tests/end_to_end/test_kubernetes.py has the pods."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import kubernetes
from tests.conftest import ROOT
from tests.core.clusters import topology_of
from tests.project import Project
from tfcluster.client import hosts
from tfcluster.client.cluster import Cluster, read_registry, register
from tfcluster.core.plan import ActionKind, PlannedAction
from tfcluster.protocol.serialization import to_json
from tfcluster.providers.kubernetes import kubectl
from tfcluster.providers.kubernetes.pods import PodSet
from tfcluster.providers.kubernetes.provider import KubernetesProvider
from tfcluster.providers.kubernetes.request import KubernetesSpec

PODS = PodSet("train", "prod", "ml")
TOPOLOGY = topology_of("name: train\nkubernetes: {pods: 2, image: a/b}\njobs: {ps: {tasks: 1}, worker: {tasks: 1}}")
REQUEST = KubernetesSpec(pods=2, image="a/b")


class DeclinedError(Exception):
    """A person has not agreed."""


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to two pods that exist; an edit of the spec changes the second one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done: list[str] = []

    def recording(name: str, answer: Any) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            done.append(name)
            return answer

        return record

    answers = {"find_pods": PODS, "check": None, "replicas": 2, "find_outdated": ["train-1"]}
    for name, answer in answers.items():
        monkeypatch.setattr(kubectl, name, lambda *arguments, answer=answer, **options: answer)
    monkeypatch.setattr(kubectl, "place", lambda topology, *others: topology)
    for name, answer in {"apply": ["train-1"], "replace_pods": None, "wait_until_running": None}.items():
        monkeypatch.setattr(kubectl, name, recording(name, answer))
    return done


def test_if_all_pods_are_replaced_none_starts_the_earlier_tasks(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "delete_topology", lambda pods: done.append("delete_topology"))
    acquire(lambda changes: None)
    assert done == ["apply", "replace_pods", "wait_until_running"], "the pod that stays may be replaced meanwhile"
    done.clear()
    monkeypatch.setattr(kubectl, "find_outdated", lambda *arguments: ["train-0", "train-1"])
    acquire(lambda changes: None)
    assert done[:2] == ["delete_topology", "apply"]


def acquire(confirm: Callable[[Sequence[Any]], None]) -> None:
    hosts.acquire_hosts(TOPOLOGY, REQUEST, lambda line: None, confirm)


def decline_losses(changes: Sequence[Any]) -> None:
    if lost := [str(each) for each in changes if each.data_loss]:
        raise DeclinedError(*lost)


def register_pods() -> None:
    register(Cluster("train", TOPOLOGY.hosts, TOPOLOGY.head().host, KubernetesProvider("train", to_json(PODS))))


def test_pods_that_were_not_started_from_here_are_asked_for(done: list[str]) -> None:
    with pytest.raises(DeclinedError) as caught:
        acquire(decline_losses)
    what = "namespace 'ml' has 2 pods of a cluster 'train' that was not started from here;"
    assert caught.value.args[0].startswith(what)
    assert done == []
    assert read_registry("train") is None


def test_pods_that_an_edit_replaces_are_asked_for_with_the_changes_of_tasks(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register_pods()
    change = PlannedAction(ActionKind.RESTART, TOPOLOGY.tasks[0], "env changed", ("the variables of ps:0",))
    monkeypatch.setattr(hosts, "_plan_tasks", lambda *arguments: [change])
    asked: list[list[str]] = []
    with pytest.raises(DeclinedError) as caught:
        acquire(decline_losses)
    replaced = "train-1 must be replaced; LOST: the runs that use tasks in train-1"
    assert caught.value.args == (replaced, str(change))
    assert done == []
    acquire(lambda changes: asked.append([str(each) for each in changes]))
    assert asked[0] == [replaced, str(change)]
    assert done == ["apply", "replace_pods", "wait_until_running"]


def test_a_slow_call_of_kubectl_is_shown(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def wait(*arguments: Any, **options: Any) -> None:
        show = kubectl._show_call.get()
        assert show is not None
        show("waits")

    monkeypatch.setattr(kubectl, "check", wait)
    hosts.acquire_hosts(TOPOLOGY, REQUEST, shown.append, lambda changes: None)
    assert shown == ["waits"]
    assert kubectl._show_call.get() is None


def test_what_another_edit_replaces_meanwhile_is_asked_for(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    register_pods()
    monkeypatch.setattr(kubectl, "find_outdated", lambda *arguments: [])
    with pytest.raises(DeclinedError, match="train-1 must be replaced"):
        acquire(decline_losses)
    assert done == ["apply"]


SPEC = "name: train\nkubernetes: {pods: 1, image: a/b, namespace: ml}\njobs: {worker: {tasks: 1}}\n"
_CONTEXTS = "hint: Name one by `context:` in the spec"


@pytest.fixture
def cluster(project: Project, say: Callable[[str, str], None], tmp_path: Path) -> Path:
    """The folder of a played Kubernetes without pods, for the kubectl of the project's commands."""
    modules = shlex.quote(f"{ROOT}:{Path(yaml.__file__).parent.parent}")
    say("kubectl", f'exec env PYTHONPATH={modules} {sys.executable} -S -m tests.kubernetes {tmp_path} "$@"')
    project.file("cluster.yaml", SPEC)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "spec", "code", "error"),
    [
        (
            {"forbidden": [["create", "services"]]},
            SPEC,
            1,
            "no right in namespace 'ml' to create services: nothing was applied",
        ),
        ({}, SPEC.replace(": ml", ": absent"), 2, "there is no namespace 'absent'"),
        ({}, SPEC.replace(": ml", ": ml, context: other"), 2, f"kubectl has no context 'other'\n{_CONTEXTS}"),
        ({"context": ""}, SPEC, 2, f"kubectl has no current context\n{_CONTEXTS}"),
    ],
    ids=["right", "namespace", "context", "no-context"],
)
def test_what_a_person_must_act_on_is_named_before_anything_is_applied(
    cluster: Path, project: Project, changed: dict[str, Any], spec: str, code: int, error: str
) -> None:
    with kubernetes.changing(cluster) as state:
        state.update(changed)
    project.file("cluster.yaml", spec)
    failed = project.run("up")
    assert (failed.code, error in failed.stderr) == (code, True), failed.stderr
    assert kubernetes.read(cluster)["objects"] == {}


@pytest.mark.usefixtures("cluster")
def test_a_machine_without_kubectl_is_told_so(project: Project) -> None:
    failed = project.run("up", env={"PATH": "/nowhere"})
    assert (failed.code, "there is no kubectl on this machine" in failed.stderr) == (1, True)


def test_what_is_left_without_pods_is_deleted_by_the_command_that_is_named(cluster: Path, project: Project) -> None:
    unknown = project.run("down")
    assert unknown.code == 3
    assert "cluster 'train' was not started from this machine, and no pods of it were found" in unknown.stderr
    labels = {"app.kubernetes.io/managed-by": "tfcluster"}
    metadata = [{"name": name, "labels": {**labels, "app.kubernetes.io/instance": name}} for name in ("train", "other")]
    left = {f"Service/{each['name']}": {"kind": "Service", "metadata": each, "spec": {}} for each in metadata}
    with kubernetes.changing(cluster) as state:
        state["objects"] = left
    command = unknown.stderr.partition("left of earlier ones: `")[2].partition("`")[0]
    subprocess.run(shlex.split(command), check=True)
    assert [*kubernetes.read(cluster)["objects"]] == ["Service/other"]
