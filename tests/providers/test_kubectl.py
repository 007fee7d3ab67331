"""What kubectl may say of pods, as a program in its place says it; tests/end_to_end/test_kubernetes.py has the rest."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.core.clusters import topology_of
from tfcluster.core.hosts import Host
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.providers.kubernetes import kubectl
from tfcluster.providers.kubernetes.manifests import topology_manifests
from tfcluster.providers.kubernetes.pods import PodSet
from tfcluster.transport.provision import code_session

PODS = PodSet("train", "prod", "ml")
Say = Callable[[str, str], None]


def pod(**status: Any) -> dict[str, Any]:
    return {"items": [{"metadata": {"name": "train-0", "uid": "0f3c"}, "status": status}]}


def container(**state: Mapping[str, str]) -> dict[str, Any]:
    return pod(containerStatuses=[{"name": "tfcluster", "state": state}])


def answer_in_turn(say: Say, folder: Path, *answers: dict[str, Any]) -> None:
    """Have kubectl print one answer after the other."""
    for number, answer in enumerate(answers):
        (folder / f"answer-{number}").write_text(json.dumps(answer))
    place = shlex.quote(str(folder))
    say("kubectl", f"cd {place} && set -- answer-* && cat $1 && rm $1")


@pytest.fixture
def lines_of(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that gives what `up` shows while it waits for a pod, if kubectl answers so in turn."""
    monkeypatch.setattr(kubectl, "_POLL_SECONDS", 0.01)

    def wait(*answers: dict[str, Any]) -> list[str]:
        answer_in_turn(say, tmp_path, *answers)
        lines: list[str] = []
        kubectl.wait_until_running(PODS, 1, lines.append)
        return lines

    return wait


def state(name: str, **state: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "state": state}


def deleted(*containers: dict[str, Any]) -> dict[str, Any]:
    """Return a pod that is being deleted."""
    found = pod(containerStatuses=[*containers])
    found["items"][0]["metadata"] |= {"deletionTimestamp": DELETION.isoformat(), "deletionGracePeriodSeconds": 120}
    return found


DELETION = datetime(2026, 11, 28, 12, 2, tzinfo=UTC)
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes:\n3 full"}
RUNNING = container(running={"startedAt": "2026-01-31T14:30:00Z"})
PULL = state("tfcluster", waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"})
ENDED = state("tfcluster", terminated={"exitCode": 0, "reason": "Completed"})
PROXY = state("a-proxy", running={"startedAt": "2026-11-28T11:00:00Z"})
SET_UP = state("set-up", waiting={"reason": "ErrImagePull", "message": "no such image"})


@pytest.mark.parametrize(
    ("answers", "lines"),
    [
        (
            [pod(conditions=[UNSCHEDULABLE]), pod(containerStatuses=[PULL]), RUNNING],
            [
                "pod train-0: Pending: Unschedulable: 0/3 nodes: 3 full",
                "pod train-0: ImagePullBackOff: Back-off pulling image",
            ],
        ),
        (
            [pod(containerStatuses=[PROXY, PULL]), pod(containerStatuses=[PROXY, state("tfcluster", running={})])],
            ["pod train-0: ImagePullBackOff: Back-off pulling image"],
        ),
        (
            [deleted(PROXY, ENDED), deleted(ENDED), RUNNING],
            [
                "pod train-0 is being deleted: container a-proxy still runs, for 120 s at most, until "
                f"{DELETION.astimezone():%H:%M:%S}",
                "pod train-0 is being deleted",
            ],
        ),
        (
            [
                pod(
                    initContainerStatuses=[SET_UP],
                    containerStatuses=[state("tfcluster", waiting={"reason": "PodInitializing"})],
                ),
                {"items": []},  # no events
                RUNNING,
            ],
            ["pod train-0: ErrImagePull: no such image"],
        ),
    ],
    ids=["not-yet", "own-container", "being-deleted", "init-container"],
)
def test_up_says_why_a_pod_does_not_run_yet(
    answers: list[dict[str, Any]], lines: list[str], lines_of: Callable[..., list[str]]
) -> None:
    assert lines_of(*answers) == lines


def event(second: int, reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    """An event as Kubernetes 1.36 has it; those of the scheduler have no `lastTimestamp`."""
    time = f"2026-11-28T12:00:{second:02}"
    times = {"eventTime": f"{time}.123456Z"} if reason == "Scheduled" else {"lastTimestamp": f"{time}Z"}
    kind = "Warning" if reason.startswith("Failed") else "Normal"
    return {"type": kind, "reason": reason, "message": message, "eventTime": None, "lastTimestamp": None} | times | more


CREATING = container(waiting={"reason": "ContainerCreating"})
NO_VOLUME = event(9, "FailedMount", 'MountVolume.SetUp failed for volume "home":\n  no such server')
NO_NODE = event(2, "FailedScheduling", "0/3 nodes are available")


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        ([NO_VOLUME, event(5, "Scheduled"), NO_NODE], 'FailedMount: MountVolume.SetUp failed for volume "home": no'),
        ([event(5, "Scheduled"), NO_NODE], "ContainerCreating"),
        ([event(9, "Scheduled"), NO_VOLUME | {"series": None}], "FailedMount"),
        ([NO_VOLUME, event(11, "Pulling")], "ContainerCreating"),
        ([NO_VOLUME, event(11, "Started"), event(11, "Unhealthy") | {"type": "Warning"}], "ContainerCreating"),
        ([], "ContainerCreating"),
    ],
    ids=["latest", "earlier", "in-one-second", "overcome", "started-since", "none"],
)
def test_up_says_what_the_container_of_a_pod_waits_for(
    events: list[dict[str, Any]], shown: str, lines_of: Callable[..., list[str]]
) -> None:
    [line] = lines_of(CREATING, {"items": events}, RUNNING)
    assert line.startswith(f"pod train-0: {shown}")


def test_up_waits_without_the_right_to_read_events(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl, "_POLL_SECONDS", 0.01)
    running = json.dumps(container(running={}))
    forbidden = 'Error from server (Forbidden): events is forbidden: User "u" cannot list resource "events"'
    say(
        "kubectl",
        f"""cd "${{0%/*}}"
case "$*" in
*" get events "*) : > asked; echo '{forbidden}' >&2; exit 1;;
esac
if test -e asked; then echo '{running}'; else echo '{json.dumps(CREATING)}'; fi""",
    )
    lines: list[str] = []
    kubectl.wait_until_running(PODS, 1, lines.append)
    assert lines == ["pod train-0: ContainerCreating"]


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
    assert "`kubectl --context=prod logs train-0 -n ml -c tfcluster --previous`" in caught.value.hint
    assert "the image requires sh and sleep" in caught.value.hint


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
def test_a_container_of_others_that_crashes_is_named_as_such(kind: str, say: Say, tmp_path: Path) -> None:
    crashed = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container=proxy"}}
    statuses = {"containerStatuses": [{"name": "tfcluster", "state": {"running": {}}}]}
    statuses[kind] = [*statuses.get(kind, []), {"name": "proxy", "state": crashed}]
    answer_in_turn(say, tmp_path, pod(**statuses))
    with pytest.raises(ClusterError) as caught:
        kubectl.wait_until_running(PODS, 1, lambda line: None)
    assert caught.value.message == (
        "pod train-0: container 'proxy', which tfcluster's manifests do not have (something in the cluster adds it): "
        "CrashLoopBackOff: back-off 20s restarting failed container=proxy"
    )
    assert "`kubectl --context=prod logs train-0 -n ml -c proxy --previous`" in caught.value.hint
    assert "image" not in caught.value.hint


LOG_LINE = (
    'E1128 12:00:00.{}   98765 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list: '
    'Get \\"https://10.99.0.1:6443/api?timeout=32s\\": dial tcp 10.99.0.1:6443: connect: connection refused"'
)
REFUSED = "The connection to the server 10.99.0.1:6443 was refused - did you specify the right host or port?"
SERVER_HINT = "`kubectl --context=prod cluster-info` shows whether the API server answers."
LOGIN_HINT = "`kubectl --context=prod auth whoami` shows whether your login is still valid"


@pytest.mark.parametrize(
    ("stderr", "message", "hint", "code"),
    [
        (f"{LOG_LINE.format(1)}\n{LOG_LINE.format(2)}\n{REFUSED}", REFUSED, SERVER_HINT, ExitCode.UNREACHABLE),
        (
            f"{LOG_LINE.format(1)}\n{LOG_LINE.format(2)}",
            'couldn\'t get current server API group list: Get "https://10.99.0.1:6443/api?timeout=32s": '
            "dial tcp 10.99.0.1:6443: connect: connection refused",
            SERVER_HINT,
            ExitCode.UNREACHABLE,
        ),
        (
            "Unable to connect to the server: net/http: TLS handshake timeout",
            "Unable to connect to the server: net/http: TLS handshake timeout",
            SERVER_HINT,
            ExitCode.UNREACHABLE,
        ),
        (
            "error: You must be logged in to the server (Unauthorized)",
            "error: You must be logged in to the server (Unauthorized)",
            LOGIN_HINT,
            ExitCode.UNREACHABLE,
        ),
        (
            # of kubectl 1.27 to 1.30, without a cache of the API
            "E1130 01:59:04.258752   11515 memcache.go:265] couldn't get current server API group list: the server has "
            "asked for the client to provide credentials\n"
            "error: You must be logged in to the server (the server has asked for the client to provide credentials)",
            "error: You must be logged in to the server (the server has asked for the client to provide credentials)",
            LOGIN_HINT,
            ExitCode.UNREACHABLE,
        ),
        (
            'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource "pods" in API group ""',
            'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource "pods" in API group ""',
            "",
            ExitCode.FAILED,
        ),
        (
            "Error in configuration: context was not found for specified context: prod",
            "Error in configuration: context was not found for specified context: prod",
            "`kubectl config get-contexts` lists them",
            ExitCode.USAGE,
        ),
    ],
    ids=["refused", "only-log-lines", "handshake", "token", "older-token", "forbidden", "context"],
)
def test_an_error_of_kubectl_is_one_sentence_with_the_hint_that_fits(
    stderr: str, message: str, hint: str, code: ExitCode, say: Say, tmp_path: Path
) -> None:
    (tmp_path / "stderr").write_text(stderr)
    say("kubectl", f"cat {shlex.quote(str(tmp_path / 'stderr'))} >&2; exit 1")
    with pytest.raises(ClusterError) as caught:
        kubectl.replicas(PODS)
    assert caught.value.message == f"kubectl failed: {message.removeprefix('error: ')}"
    assert caught.value.hint.startswith(hint)
    assert bool(caught.value.hint) is bool(hint)
    assert caught.value.exit_code is code


def test_an_api_server_that_does_not_answer_is_unreachable(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl, "_COMMAND_SECONDS", 0.1)
    say("kubectl", "exec sleep 60")
    with pytest.raises(ClusterError, match=r"kubectl has not answered within 0\.1 s") as caught:
        kubectl.replicas(PODS)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert caught.value.hint == SERVER_HINT


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (kubectl.replicas, "waits for kubectl get statefulsets.apps train"),
        (kubectl.check, "waits for kubectl get --raw=/apis/apps/v1/namespaces/ml/statefulsets/train"),
    ],
    ids=["replicas", "check"],
)
def test_a_call_that_takes_long_is_shown(
    ask: Callable[[PodSet], object], line: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "_SILENT_SECONDS", 0.01)
    flag = tmp_path / "shown"
    say("kubectl", f"while ! test -e {shlex.quote(str(flag))}; do sleep 0.01; done; echo no >&2; exit 1")
    lines: list[str] = []

    def show(text: str) -> None:
        lines.append(text)
        flag.touch()

    with kubectl.show_slow_calls(show), pytest.raises(ClusterError):
        ask(PODS)
    assert lines == [line]


def test_a_right_that_is_missing_is_named_before_anything_is_applied(say: Say, tmp_path: Path) -> None:
    asked = shlex.quote(str(tmp_path / "asked"))
    verb = f'for word; do case $word in -*) ;; *) echo "$word" >> {asked};; esac; done'
    say("kubectl", f"{verb}; yes true | head -n {len(kubectl._RIGHTS) - 1}; echo false")
    with pytest.raises(ClusterError, match="no right in namespace 'ml' to create pods/exec: nothing was applied"):
        kubectl.check(PODS)
    assert (tmp_path / "asked").read_text() == "get\ncreate\n", "nothing but questions was sent"


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("error: You must be logged in to the server (Unauthorized)", ExitCode.UNREACHABLE),
        (REFUSED, ExitCode.UNREACHABLE),
        ("Error in configuration: context was not found for specified context: prod", ExitCode.USAGE),
    ],
    ids=["token", "refused", "context"],
)
def test_an_api_server_that_does_not_let_one_delete_is_named_before_anything_stops(
    stderr: str, code: ExitCode, say: Say, tmp_path: Path
) -> None:
    say("kubectl", f"echo {shlex.quote(stderr)} >&2; echo >> {shlex.quote(str(tmp_path / 'calls'))}; exit 1")
    with pytest.raises(ClusterError) as caught:
        kubectl.check_release(PODS)
    assert caught.value.message == f"nothing was stopped: kubectl failed: {stderr.removeprefix('error: ')}"
    assert caught.value.hint.endswith("`tfcluster down -c train` then stops it.")
    assert caught.value.exit_code is code
    assert (tmp_path / "calls").read_text() == "\n", "one time-out is enough"


@pytest.mark.parametrize("answer", ["NotFound", "Forbidden"])
def test_a_right_to_delete_that_is_missing_is_named_before_anything_stops(answer: str, say: Say) -> None:
    asked = f"echo 'Error from server ({answer}): ...' >&2; exit 1"
    rights = len(kubectl._RELEASE_RIGHTS)
    say("kubectl", f'case "$*" in *" --raw="*) {asked};; esac; echo false; yes true | head -n {rights - 1}')
    with pytest.raises(
        ClusterError, match=r"no right in namespace 'ml' to list statefulsets\.apps: nothing was stopped"
    ):
        kubectl.check_release(PODS)


@pytest.mark.parametrize("found", ["service/other", "service/train", "configmap/train-tfcluster-topology"])
def test_objects_of_others_are_refused(found: str, say: Say) -> None:
    say(
        "kubectl",
        f"""case "$*" in
*" create "*) yes true | head -n {len(kubectl._RIGHTS)};;
*managed-by!=tfcluster*) echo {found};;
esac""",
    )
    if found == "service/other":
        kubectl.check(PODS)
        return
    kind, _, name = found.partition("/")
    with pytest.raises(ClusterError, match=f"{kind} '{name}' in namespace 'ml' does not belong to tfcluster"):
        kubectl.check(PODS)


@pytest.mark.parametrize("owner", ["tfcluster", "somebody"])
def test_pods_that_another_program_has_made_are_not_those_of_the_cluster(owner: str, say: Say) -> None:
    labels = f'{{"app.kubernetes.io/managed-by": "{owner}", "app.kubernetes.io/instance": "train"}}'
    say("kubectl", f"""echo '{{"metadata": {{"labels": {labels}}}, "spec": {{"replicas": 2}}}}'""")
    assert kubectl.exists(PODS) is (owner == "tfcluster")


def test_tasks_that_are_stored_as_they_are_are_not_applied_again(say: Say, tmp_path: Path) -> None:
    topology = topology_of("name: train\nkubernetes: {image: a/b, namespace: ml}\njobs: {worker: {tasks: 1}}")
    [stored] = yaml.safe_load_all(topology_manifests(topology, None, was_up=True))
    (tmp_path / "stored.json").write_text(json.dumps(stored))
    session = json.dumps(code_session(None))
    say(
        "kubectl",
        f"""echo "$*" >>{tmp_path}/calls; case "$*" in
*tfcluster-topology*) cat {tmp_path}/stored.json;;
*tfcluster-code*) echo '{session}';;
esac""",
    )
    kubectl.apply_topology(PODS, topology)
    assert " apply " not in (tmp_path / "calls").read_text()
    kubectl.apply_topology(PODS, replace(topology, generation=7))
    assert (tmp_path / "calls").read_text().count(" apply ") == 1
