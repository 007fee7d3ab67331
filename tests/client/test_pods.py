"""What `up` asks before it touches pods that exist; tests/end_to_end/test_kubernetes.py has the pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.core.clusters import topology_of
from tfcluster.client import pods
from tfcluster.client.cluster import Cluster, read_registry, register
from tfcluster.client.pods import Consent
from tfcluster.core.kubernetes import PodSet
from tfcluster.providers import kubernetes
from tfcluster.spec.kubernetes import KubernetesSpec

PODS = PodSet("train", "prod", "ml")
TOPOLOGY = topology_of("name: train\nkubernetes: {pods: 2, image: a/b}\njobs: {ps: {tasks: 1}, worker: {tasks: 1}}")
REQUEST = KubernetesSpec(pods=2, image="a/b")


class DeclinedError(Exception):
    """A person has not agreed."""


def decline(*what: object) -> NoReturn:
    raise DeclinedError(*what)


def agree(*what: object) -> None:
    pass


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to two pods that exist, of which an edit of the spec changes the second."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done: list[str] = []

    def recording(name: str, answer: Any) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            done.append(name)
            return answer

        return record

    answers = {"find_pods": PODS, "check": None, "replicas": 2, "find_outdated": ["train-1"]}
    for name, answer in answers.items():
        monkeypatch.setattr(kubernetes, name, lambda *arguments, answer=answer: answer)
    monkeypatch.setattr(kubernetes, "place", lambda topology, *others: topology)
    for name, answer in {"apply": ["train-1"], "replace_pods": None, "wait_until_running": None}.items():
        monkeypatch.setattr(kubernetes, name, recording(name, answer))
    return done


def test_pods_that_were_not_started_from_here_are_asked_for(done: list[str]) -> None:
    with pytest.raises(DeclinedError) as caught:
        pods.start(TOPOLOGY, REQUEST, lambda line: None, Consent(agree, decline, agree))
    assert caught.value.args == (PODS,)
    assert done == []
    assert read_registry("train") is None


def test_pods_that_an_edit_replaces_are_asked_for(done: list[str]) -> None:
    register(Cluster("train", TOPOLOGY.hosts, TOPOLOGY.head().host, pods=PODS))
    with pytest.raises(DeclinedError) as caught:
        pods.start(TOPOLOGY, REQUEST, lambda line: None, Consent(decline, agree, agree))
    assert caught.value.args == (["train-1"],)
    assert done == []
    pods.start(TOPOLOGY, REQUEST, lambda line: None, Consent(agree, decline, agree))
    assert done == ["apply", "replace_pods", "wait_until_running"]
