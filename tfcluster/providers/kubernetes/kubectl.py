"""kubectl: apply the manifests of a cluster with the user's kubectl, wait for its pods, and delete them.

A host is then one that `connect:` reaches, by `kubectl exec`.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfcluster.core.hosts import Provided
from tfcluster.core.topology import OPEN, ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.providers.kubernetes.manifests import CONTAINER, INSTANCE, MANAGED_BY, pod_manifests
from tfcluster.providers.kubernetes.pods import PodSet
from tfcluster.providers.programs import find_program, run_program

if TYPE_CHECKING:
    import subprocess

    from tfcluster.providers.kubernetes.request import KubernetesSpec

_COMMAND_SECONDS = 120.0  # for a command of kubectl
_POLL_SECONDS = 1.0  # while pods start
_FIELD_MANAGER = "tfcluster"
_KINDS = "statefulsets.apps,services,networkpolicies.networking.k8s.io"
_RIGHTS = (
    *((verb, kind) for kind in _KINDS.split(",") for verb in ("get", "list", "create", "patch", "delete")),
    *((verb, "pods") for verb in ("get", "list", "delete")),
    ("create", "pods/exec"),
)
# What Kubernetes says if an edit adds, removes or changes the volume of each pod, all else that a spec sets may change.
_IMMUTABLE = "updates to statefulset spec for fields other than"
# States of a container that last until a person acts.
_CRASHED = "CrashLoopBackOff"
_IS_SERVER_THERE = "`kubectl cluster-info` shows whether the API server answers."


def find_pods(cluster: str, request: KubernetesSpec) -> PodSet:
    """Return the place for the pods of a spec; without a context or a namespace it is kubectl's."""
    shown = json.loads(_kubectl(["config", "view", "--output=json"]))
    name = request.context or shown.get("current-context")
    context = next((each["context"] for each in shown.get("contexts") or () if each["name"] == name), None)
    if context is None:
        raise ClusterError(
            f"kubectl has no context {name!r}" if name else "kubectl has no current context",
            hint="Name one by `context:` in the spec; `kubectl config get-contexts` lists them.",
            exit_code=ExitCode.USAGE,
        )
    return PodSet(cluster, name, request.namespace or context.get("namespace") or "default")


def check(pods: PodSet) -> None:
    """Raise an error if the namespace does not exist, the user lacks a right, or objects there are not tfcluster's."""
    if missing := _missing_rights(pods):
        raise ClusterError(
            f"context {pods.context!r} has no right in namespace {pods.namespace!r} to {', '.join(missing)}: "
            "nothing was applied",
            hint=f"`kubectl auth can-i --list --namespace {pods.namespace}` shows yours.",
        )
    _check_namespace(pods)
    for each in json.loads(_run(pods, "get", _KINDS, "--output=json"))["items"]:
        metadata = each["metadata"]
        if metadata["name"] == pods.cluster and metadata.get("labels", {}).get(MANAGED_BY[0]) != MANAGED_BY[1]:
            raise ClusterError(
                f"{each['kind']} {pods.cluster!r} in namespace {pods.namespace!r} is not of tfcluster: "
                "nothing was applied",
                hint="Give the cluster another `name:`.",
                exit_code=ExitCode.USAGE,
            )


def _missing_rights(pods: PodSet) -> list[str]:
    """Return the rights that the user lacks; `kubectl auth can-i` would be a process for each of them."""
    reviews = [_access_review(pods.namespace, verb, kind) for verb, kind in _RIGHTS]
    answers = _run(
        pods,
        *("create", "--filename=-", "--validate=false", '--output=jsonpath={.status.allowed}{"\\n"}'),
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews}),
    ).splitlines()
    return [f"{verb} {kind}" for (verb, kind), answer in zip(_RIGHTS, answers, strict=True) if answer != "true"]


def _access_review(namespace: str, verb: str, kind: str) -> dict[str, Any]:
    """Return an object that asks whether the user has a right; the kind is as kubectl takes it, `pods/exec` too."""
    name, _, subresource = kind.partition("/")
    resource, _, group = name.partition(".")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, "subresource": subresource}},
    }


def _check_namespace(pods: PodSet) -> None:
    result = _call([*_options(pods), "get", "namespace", pods.namespace, "--output=name"])
    if "NotFound" in result.stderr:  # one that may not be read exists, or `apply` says so
        raise ClusterError(
            f"there is no namespace {pods.namespace!r} in context {pods.context!r}: nothing was applied",
            hint=f"`kubectl create namespace {pods.namespace}`, or name another by `namespace:` in the spec.",
            exit_code=ExitCode.USAGE,
        )


def replicas(pods: PodSet) -> int:
    """Return how many pods the cluster has now, as its StatefulSet says it."""
    found = _run(pods, "get", "statefulsets.apps", pods.cluster, "--ignore-not-found", "--output=json").strip()
    return int(json.loads(found)["spec"]["replicas"]) if found else 0


def find_outdated(pods: PodSet, topology: ClusterTopology, request: KubernetesSpec, count: int) -> list[str]:
    """Return the pods that exist and would be of an earlier version if the manifests were applied.

    There is a StatefulSet.
    """
    applied = json.loads(_apply(pods, pod_manifests(topology, request, count), "--dry-run=server", "--output=json"))
    [then] = (each for each in applied.get("items", [applied]) if each["kind"] == "StatefulSet")
    now = _wait_for_controller(pods)
    revision = now["status"].get("updateRevision") if then["spec"]["template"] == now["spec"]["template"] else None
    return _pods_without(pods, revision)


def apply(pods: PodSet, topology: ClusterTopology, request: KubernetesSpec, count: int) -> list[str]:
    """Apply the manifests with a number of pods; return the pods that exist and are of an earlier version of them."""
    _apply(pods, pod_manifests(topology, request, count))
    if topology.network == OPEN:
        _run(pods, "delete", "networkpolicies.networking.k8s.io", f"--selector={_selector(pods.cluster)}")
    return _pods_without(pods, _wait_for_controller(pods)["status"].get("updateRevision"))


def _wait_for_controller(pods: PodSet) -> dict[str, Any]:
    """Wait until the controller has seen the latest StatefulSet, and return it: its status fits its spec then."""
    deadline = time.monotonic() + _COMMAND_SECONDS
    while True:
        found: dict[str, Any] = json.loads(_run(pods, "get", "statefulsets.apps", pods.cluster, "--output=json"))
        seen = found.setdefault("status", {}).get("observedGeneration", 0)
        if seen >= found["metadata"].get("generation", 0) or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_SECONDS)


def _apply(pods: PodSet, manifests: str, *options: str) -> str:
    arguments = ("apply", "--server-side", f"--field-manager={_FIELD_MANAGER}", *options, "--filename=-")
    try:
        return _run(pods, *arguments, stdin=manifests)
    except ClusterError as error:
        if _IMMUTABLE not in error.message:
            raise
    words = ["kubectl", *_options(pods), "delete", "persistentvolumeclaims", f"--selector={INSTANCE}={pods.cluster}"]
    raise ClusterError(
        f"Kubernetes forbids a change of `storage:` while the pods of {pods.cluster!r} exist: nothing was changed",
        hint=f"`tfcluster down -c {pods.cluster}`, then `up`. Volumes that exist keep their size; to delete them in "
        f"between, with all logs and runs: `{shlex.join(words)}`.",
        exit_code=ExitCode.USAGE,
    )


def _pods_without(pods: PodSet, revision: str | None) -> list[str]:
    """Return the pods that are of another revision of the StatefulSet."""
    return [
        pod["metadata"]["name"]
        for pod in _list_pods(pods)
        if pod["metadata"].get("labels", {}).get("controller-revision-hash") != revision
    ]


def replace_pods(pods: PodSet, names: list[str]) -> None:
    """Delete pods, which the StatefulSet makes again from its present template."""
    # One may have ended since; and runs in them may take long to save their state.
    _run(pods, "delete", "pods", *names, "--ignore-not-found", "--wait=false")


def wait_until_running(pods: PodSet, count: int, show: Callable[[str], None]) -> None:
    """Wait until the pods run; `show` is called with a line for each reason why they do not."""
    while True:
        found = {pod["metadata"]["name"]: pod for pod in _list_pods(pods)}
        names = [f"{pods.cluster}-{index}" for index in range(count)]
        waiting = [reason for name in names if (reason := _find_reason(name, found.get(name))) is not None]
        if not waiting:
            return
        if any(name not in found for name in names):
            waiting = [*_failures(pods), *waiting]
        show(waiting[0])
        time.sleep(_POLL_SECONDS)


def _find_reason(name: str, pod: Mapping[str, Any] | None) -> str | None:
    """Return why a pod does not run; None if it does. A container that crashes raises an error."""
    if pod is None:
        return f"pod {name} does not exist yet"
    if "deletionTimestamp" in pod["metadata"]:
        return f"pod {name} is being deleted"
    status = pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        state = container.get("state", {})
        if "running" in state:
            return None
        waiting = state.get("waiting", {})
        if waiting.get("reason") == _CRASHED:
            raise ClusterError(
                f"pod {name}: {_CRASHED}: {waiting.get('message', 'its container ends at once')}",
                hint=f"`kubectl logs {name} --previous` shows what it printed; the image requires sh and sleep.",
            )
        if waiting:
            return _describe(name, waiting)
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _describe(name, condition, "Pending")
    return f"pod {name}: {status.get('phase', 'Pending')}"


def _describe(name: str, state: Mapping[str, Any], phase: str = "") -> str:
    words = [phase, state.get("reason", ""), " ".join(state.get("message", "").split())]
    return f"pod {name}: " + ": ".join(word for word in words if word)


def _failures(pods: PodSet) -> Iterator[str]:
    """Yield why the StatefulSet could not make a pod, such as a quota."""
    selector = f"--field-selector=involvedObject.kind=StatefulSet,involvedObject.name={pods.cluster}"
    found = _call([*_options(pods), "get", "events", selector, "--output=json"])
    for event in reversed(json.loads(found.stdout)["items"] if found.returncode == 0 else []):  # a right not all have
        if event.get("type") == "Warning":
            yield f"{pods.cluster}: {event.get('reason', '')}: {' '.join(event.get('message', '').split())}"


def place(topology: ClusterTopology, pods: PodSet, image: str) -> ClusterTopology:
    """Return a topology whose hosts are the pods."""
    return topology.on_hosts(
        replace(
            host,
            address=pods.address(host.name),
            ssh=None,
            connect=_connect(pods, host.name),
            provided=Provided("kubernetes"),
            image=image,
        )
        for host in topology.hosts
    )


def _connect(pods: PodSet, host: str) -> str:
    words = ["kubectl", *_options(pods), "exec", "-i"]  # found on PATH: the place of a host outlives an upgrade
    return f"{shlex.join(words)} {{terminal:-t}} {pods.pod(host)} -c {CONTAINER} --"


def release(pods: PodSet) -> None:
    """Delete what `up` has applied for a cluster; volumes stay."""
    _run(pods, "delete", _KINDS, f"--selector={_selector(pods.cluster)}")


def not_started_here(cluster: str, request: KubernetesSpec) -> ClusterError:
    """Build the error for a cluster whose pods, if there are any, this machine has not made."""
    place = [f"--{name}={value}" for name in ("context", "namespace") if (value := getattr(request, name))]
    command = shlex.join(["kubectl", *place, "delete", _KINDS, f"--selector={_selector(cluster)}"])
    return ClusterError(
        f"cluster {cluster!r} was not started from this machine, which knows of no pods of it",
        hint="`tfcluster up` makes its pods, or continues with those that exist, which `tfcluster down` then deletes. "
        f"To delete them at once: `{command}`.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def _list_pods(pods: PodSet) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(
        _run(pods, "get", "pods", f"--selector={_selector(pods.cluster)}", "--output=json")
    )["items"]
    return items


def _selector(cluster: str) -> str:
    return f"{'='.join(MANAGED_BY)},{INSTANCE}={cluster}"


def _options(pods: PodSet) -> list[str]:
    return [f"--context={pods.context}", f"--namespace={pods.namespace}"]


def _program() -> str:
    return find_program("kubectl", "Install it, or type this where it is.")


def _run(pods: PodSet, *arguments: str, stdin: str = "") -> str:
    return _kubectl([*_options(pods), *arguments], stdin, _IS_SERVER_THERE)


def _kubectl(arguments: list[str], stdin: str = "", hint: str = "") -> str:
    """Run kubectl, and return what it prints."""
    result = _call(arguments, stdin)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise ClusterError(f"kubectl failed: {' '.join(lines[-3:])}", hint=hint)
    return result.stdout


def _call(arguments: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_program([_program(), *arguments], stdin, _COMMAND_SECONDS, _IS_SERVER_THERE)
