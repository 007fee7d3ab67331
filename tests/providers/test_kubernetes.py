"""What kubectl may say of pods, as a program in its place says it; tests/end_to_end/test_kubernetes.py has the rest."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tfcluster.core.hosts import Host
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.providers.kubernetes import kubectl
from tfcluster.providers.kubernetes.pods import PodSet

PODS = PodSet("train", "prod", "ml")
Say = Callable[[str, str], None]


def pod(**status: Any) -> dict[str, Any]:
    return {"items": [{"metadata": {"name": "train-0"}, "status": status}]}


def container(**state: Mapping[str, str]) -> dict[str, Any]:
    return pod(containerStatuses=[{"state": state}])


def answer_in_turn(say: Say, folder: Path, *answers: dict[str, Any]) -> None:
    """Have kubectl print one answer after the other."""
    for number, answer in enumerate(answers):
        (folder / f"answer-{number}").write_text(json.dumps(answer))
    place = shlex.quote(str(folder))
    say("kubectl", f"cd {place} && set -- answer-* && cat $1 && rm $1")


def test_up_says_why_a_pod_does_not_run_yet(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl, "_POLL_SECONDS", 0.01)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes:\n3 full"}
    answer_in_turn(
        say,
        tmp_path,
        pod(conditions=[condition]),
        container(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"}),
        container(running={"startedAt": "2026-01-31T14:30:00Z"}),
    )
    shown: list[str] = []
    kubectl.wait_until_running(PODS, 1, shown.append)
    assert shown == [
        "pod train-0: Pending: Unschedulable: 0/3 nodes: 3 full",
        "pod train-0: ImagePullBackOff: Back-off pulling image",
    ]


def test_a_pod_is_the_same_place_whichever_kubectl_is_first_on_the_path(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("kubectl", "exit 0")
    topology = ClusterTopology("train", "", "open", (), hosts=(Host("pod1", ""),))
    before = kubectl.place(topology, PODS, "image").hosts
    newer = tmp_path / "newer"
    newer.mkdir()
    (tmp_path / "kubectl").rename(newer / "kubectl")
    monkeypatch.setenv("PATH", f"{newer}{os.pathsep}{os.environ['PATH']}")
    assert kubectl.place(topology, PODS, "image").hosts == before


def test_a_container_that_crashes_ends_the_wait(say: Say, tmp_path: Path) -> None:
    answer_in_turn(say, tmp_path, container(waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s"}))
    with pytest.raises(ClusterError, match="pod train-0: CrashLoopBackOff: back-off 10s") as caught:
        kubectl.wait_until_running(PODS, 1, lambda line: None)
    assert "`kubectl logs train-0 --previous`" in caught.value.hint


def test_a_right_that_is_missing_is_named_before_anything_is_applied(say: Say, tmp_path: Path) -> None:
    asked = shlex.quote(str(tmp_path / "asked"))
    say("kubectl", f'echo "$3" >> {asked}; yes true | head -n {len(kubectl._RIGHTS) - 1}; echo false')
    with pytest.raises(ClusterError, match="no right in namespace 'ml' to create pods/exec: nothing was applied"):
        kubectl.check(PODS)
    assert (tmp_path / "asked").read_text() == "create\n", "nothing but the question was sent"


@pytest.mark.parametrize(("owner", "is_refused"), [("tfcluster", False), ("helm", True)])
def test_objects_of_others_are_refused(owner: str, is_refused: bool, say: Say, tmp_path: Path) -> None:
    label = {"app.kubernetes.io/managed-by": owner}
    found = {"items": [{"kind": "Service", "metadata": {"name": "train", "labels": label}}]}
    (tmp_path / "found").write_text(json.dumps(found))
    place = shlex.quote(str(tmp_path / "found"))
    say("kubectl", f'case "$*" in *" create "*) yes true | head -n {len(kubectl._RIGHTS)} ;; *) cat {place} ;; esac')
    if not is_refused:
        kubectl.check(PODS)
        return
    with pytest.raises(ClusterError, match="Service 'train' in namespace 'ml' is not of tfcluster"):
        kubectl.check(PODS)
