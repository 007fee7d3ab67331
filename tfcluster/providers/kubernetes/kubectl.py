"""kubectl: apply the manifests of a cluster with the user's kubectl, wait for its pods, and delete them.

A host is then one that `connect:` reaches, by `kubectl exec`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tfcluster import settings
from tfcluster.core.hosts import Provided
from tfcluster.core.secrets import has_secrets
from tfcluster.core.topology import OPEN, ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.providers.kubernetes.manifests import (
    CONTAINER,
    INSTANCE,
    MANAGED_BY,
    code_manifest,
    compress,
    object_names,
    pod_manifests,
    topology_manifests,
    why_up_is_needed,
)
from tfcluster.providers.kubernetes.pods import PodSet
from tfcluster.providers.kubernetes.start import FACTS, HAS_SECRETS, SESSION, TOPOLOGY, WAS_UP
from tfcluster.providers.programs import find_program, run_program
from tfcluster.transport.provision import code_session

if TYPE_CHECKING:
    import subprocess

    from tfcluster.providers.kubernetes.request import KubernetesSpec

_COMMAND_SECONDS = 120.0  # for a command of kubectl
_READ_SECONDS = 30.0  # for the API server to answer a question, of which some commands ask several
_REQUEST_SECONDS = 10.0  # for its answer to the first one, before anything is applied or stopped
_SILENT_SECONDS = 2.0  # of a command of kubectl, until `up` shows that it waits for it
_POLL_SECONDS = 1.0  # while pods start
_FIELD_MANAGER = "tfcluster"
_KINDS = "statefulsets.apps,services,networkpolicies.networking.k8s.io,configmaps"
_RIGHTS = (
    *((verb, kind) for kind in _KINDS.split(",") for verb in ("get", "list", "create", "patch", "delete")),
    *((verb, "pods") for verb in ("get", "list", "delete")),
    ("create", "pods/exec"),
)
# With secret values. To list secrets would be a right to read all of them.
_SECRET_RIGHTS = tuple((verb, "secrets") for verb in ("create", "patch", "delete"))
_DELETE_SECRETS = ("delete", "secrets")
_SECRET_RELEASE_RIGHTS = (("delete", "secrets"),)
_RELEASE_RIGHTS = tuple(
    (verb, kind) for verb, kind in _RIGHTS if kind in _KINDS.split(",") and verb in ("list", "delete")
)
# What Kubernetes says if an edit adds, removes or changes the volume of each pod, all else that a spec sets may change.
_IMMUTABLE = "updates to statefulset spec for fields other than"
# States of a container that last until a person acts.
_CRASHED = "CrashLoopBackOff"
# States of a container that say nothing of what it waits for.
_SILENT = {"ContainerCreating", "PodInitializing"}
# Events after which the earlier warnings of a pod concern it no more.
_OVERCOME = ("Scheduled", "Pulling", "Pulled", "Created", "Started", "Unhealthy")
# A line of kubectl's log, which it prints beside the sentence that says what failed.
_LOG_LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w.]+:\d+\] ")
# What kubectl and the API server say of a token that is missing, expired or revoked; and if the server does not answer.
_NO_LOGIN = re.compile(
    r"Unauthorized|must be logged in|provide credentials|getting credentials|oauth2|[Tt]oken (is|has) expired"
)
_NO_ANSWER = re.compile(
    r"Unable to connect to the server|was refused - did you|dial tcp|no such host|[Cc]onnection (refused|reset)|EOF$|"
    r"[Tt]imeout|timed out|deadline exceeded|ServiceUnavailable|unable to handle the request"
)
_NO_CONTEXT = re.compile(r"context was not found|context .* does not exist")
_SERVER_HINT = ("cluster-info", "shows whether the API server answers.")
_LOGIN_HINT = ("auth whoami", "shows whether your login is still valid; if it is not, log in again.")
# What shows a line while a command of kubectl takes long.
_show_call: ContextVar[Callable[[str], None] | None] = ContextVar("show_call", default=None)


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


def check(pods: PodSet, *, with_secrets: bool = False) -> None:
    """Raise an error if the namespace does not exist, the user lacks a right, or objects there are not tfcluster's."""
    _ask(pods)
    if missing := _missing_rights(pods, (*_RIGHTS, *(_SECRET_RIGHTS if with_secrets else ()))):
        raise _rights_error(pods, missing, "nothing was applied")
    _check_namespace(pods)
    foreign = _run(pods, "get", _KINDS, f"--selector={MANAGED_BY[0]}!={MANAGED_BY[1]}", "--output=name").split()
    for kind, name in map(_split_name, foreign):
        if name in object_names(pods.cluster) if kind == "configmap" else name == pods.cluster:
            raise ClusterError(
                f"{kind} {name!r} in namespace {pods.namespace!r} does not belong to tfcluster: nothing was applied",
                hint="Give the cluster another `name:`.",
                exit_code=ExitCode.USAGE,
            )


def _split_name(printed: str) -> tuple[str, str]:
    """Return the kind and the name of an object that kubectl has printed as `statefulset.apps/train`."""
    kind, _, name = printed.partition("/")
    return kind.partition(".")[0], name


def check_release(pods: PodSet) -> None:
    """Raise an error if `release` would fail: the API server does not answer, or the user may not delete objects."""
    try:
        _ask(pods)
        missing = _missing_rights(pods, _RELEASE_RIGHTS)
        if not missing and _facts(_stored(pods)).get(HAS_SECRETS):
            missing = _missing_rights(pods, _SECRET_RELEASE_RIGHTS)
    except ClusterError as error:
        hint = f"{error.hint} `tfcluster down -c {pods.cluster}` then stops it.".lstrip()
        raise ClusterError(f"nothing was stopped: {error.message}", hint=hint, exit_code=error.exit_code) from None
    if missing:
        raise _rights_error(pods, missing, "nothing was stopped")


def _ask(pods: PodSet) -> str | None:
    """Ask the API server for the StatefulSet of a cluster, and wait for its answer for a short time: JSON, or None.

    Without its storage, it cannot answer. Other commands of kubectl are several requests, each with its own time-out.
    """
    path = f"/apis/apps/v1/namespaces/{pods.namespace}/statefulsets/{pods.cluster}"
    arguments = [*_options(pods), "get", f"--raw={path}", f"--request-timeout={_REQUEST_SECONDS:g}s"]
    result = _call(arguments)
    if result.returncode and not re.search(r"\((NotFound|Forbidden)\)", result.stderr):
        raise _failure(arguments, result.stderr)
    return None if result.returncode else result.stdout


def _rights_error(pods: PodSet, missing: list[str], consequence: str) -> ClusterError:
    return ClusterError(
        f"context {pods.context!r} has no right in namespace {pods.namespace!r} to {', '.join(missing)}: {consequence}",
        hint=f"`kubectl auth can-i --list --namespace {pods.namespace}` shows yours.",
    )


def _missing_rights(pods: PodSet, rights: tuple[tuple[str, str], ...] = _RIGHTS) -> list[str]:
    """Return the rights that the user lacks; `kubectl auth can-i` would be a process for each of them."""
    reviews = [_access_review(pods.namespace, verb, kind) for verb, kind in rights]
    answers = _run(
        pods,
        *("create", "--filename=-", "--validate=false", '--output=jsonpath={.status.allowed}{"\\n"}'),
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews}),
    ).splitlines()
    return [f"{verb} {kind}" for (verb, kind), answer in zip(rights, answers, strict=True) if answer != "true"]


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


def exists(pods: PodSet) -> bool:
    """Return whether there are pods of a cluster; a server that does not answer is waited for shortly."""
    answer = _ask(pods)
    if answer is None:
        return False
    found = json.loads(answer)
    labels = found["metadata"].get("labels", {})
    is_own = labels.items() >= {MANAGED_BY, (INSTANCE, pods.cluster)}
    return is_own and bool(found["spec"]["replicas"])


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
    _apply_code(pods)
    _apply(pods, pod_manifests(topology, request, count))
    if topology.network == OPEN:
        _run(pods, "delete", "networkpolicies.networking.k8s.io", f"--selector={_selector(pods.cluster)}")
    return _pods_without(pods, _wait_for_controller(pods)["status"].get("updateRevision"))


def _apply_code(pods: PodSet) -> None:
    """Apply the ConfigMap with tfcluster's code, unless it has this version."""
    query = f"--output=jsonpath={{.data.{SESSION.replace('.', chr(92) + '.')}}}"
    found = _run(pods, "get", "configmaps", object_names(pods.cluster)[0], "--ignore-not-found", query).strip()
    if found != json.dumps(code_session(None)):
        _apply(pods, code_manifest(pods.cluster, None))


def apply_topology(pods: PodSet, topology: ClusterTopology) -> None:
    """Apply the code and the topology of a cluster that is up, with which a new pod starts its tasks."""
    stored = _stored(pods)
    if why_up_is_needed(topology) is not None:
        if stored:
            delete_topology(pods)
        return
    _apply_code(pods)
    if stored.get("binaryData", {}).get(TOPOLOGY) == compress(topology) and _facts(stored).get(WAS_UP):
        return
    if _facts(stored).get(HAS_SECRETS) and not has_secrets(topology):
        _delete_secrets(pods)
    _apply(pods, topology_manifests(topology, None, was_up=True))


def _stored(pods: PodSet) -> dict[str, Any]:
    """Return the ConfigMap with the topology; it is empty if there is none."""
    name = object_names(pods.cluster)[1]
    text = _run(pods, "get", "configmaps", name, "--ignore-not-found", "--output=json").strip()
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def _facts(stored: dict[str, Any]) -> dict[str, bool]:
    """Return what the ConfigMap with the topology says about it; it is empty if there is none."""
    facts: dict[str, bool] = json.loads(stored.get("data", {}).get(FACTS, "{}"))
    return facts


def delete_topology(pods: PodSet) -> None:
    """Delete what starts tasks in a new pod, or in a container that is restarted; the secret values go first."""
    stored = _stored(pods)
    if _facts(stored).get(HAS_SECRETS):
        _delete_secrets(pods)
    if stored:
        _run(pods, "delete", "configmaps", object_names(pods.cluster)[1], "--ignore-not-found", "--wait=false")


def _delete_secrets(pods: PodSet) -> None:
    """Delete the secret values by the name of their object: to list secrets is a right to read all of them."""
    _run(pods, "delete", "secrets", object_names(pods.cluster)[2], "--ignore-not-found", "--wait=false")


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
    # What others have applied of these fields, such as the output of `manifests`, gives way: `up` has asked.
    manager = ("--server-side", f"--field-manager={_FIELD_MANAGER}", "--force-conflicts")
    arguments = ("apply", *manager, *options, "--filename=-")
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
        and "deletionTimestamp" not in pod["metadata"]
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
        waiting = [reason for name in names if (reason := _find_reason(pods, name, found.get(name)))]
        if not waiting:
            return
        if any(name not in found for name in names):
            waiting = [*_failures(pods), *waiting]
        show(next(_pod_failures(pods, [found[name] for name in names if name in found]), waiting[0]))
        time.sleep(_POLL_SECONDS)


def _find_reason(pods: PodSet, name: str, pod: Mapping[str, Any] | None) -> str | None:
    """Return why a pod does not run; None if it does. A container that crashes raises an error."""
    if pod is None:
        return f"pod {name} does not exist yet"
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return _describe_deletion(name, pod)
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    waiting = [(each["name"], each.get("state", {}).get("waiting") or {}) for each in containers]
    for container, state in waiting:
        if state.get("reason") == _CRASHED:
            raise _crash_error(pods, name, container, state)
    if any(each["name"] == CONTAINER and "running" in each.get("state", {}) for each in containers):
        return None
    # One that waits for the others says nothing of the cause.
    for _, state in sorted(waiting, key=lambda each: each[1].get("reason") in _SILENT):
        if state:
            return _describe(name, state)
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _describe(name, condition, "Pending")
    return f"pod {name}: {status.get('phase', 'Pending')}"


def _describe_deletion(name: str, pod: Mapping[str, Any]) -> str:
    """Return which containers of a pod that is being deleted still run, and when Kubernetes kills them."""
    metadata, statuses = pod["metadata"], pod.get("status", {}).get("containerStatuses", ())
    running = [each["name"] for each in statuses if "running" in each.get("state", {})]
    seconds = metadata.get("deletionGracePeriodSeconds")
    if not running or not seconds:
        return f"pod {name} is being deleted"
    end = datetime.fromisoformat(metadata["deletionTimestamp"]).astimezone()  # when its grace period ends
    which = f"container {running[0]} still runs" if len(running) == 1 else f"containers {', '.join(running)} still run"
    return f"pod {name} is being deleted: {which}, for {seconds} s at most, until {end:%H:%M:%S}"


def _crash_error(pods: PodSet, name: str, container: str, state: Mapping[str, Any]) -> ClusterError:
    words = ["kubectl", f"--context={pods.context}", "logs", name, "-n", pods.namespace, "-c", container, "--previous"]
    which, hint = "", f"`{shlex.join(words)}` shows what it printed; the image requires sh and sleep."
    if container != CONTAINER:
        which = f"container {container!r}, which tfcluster's manifests do not have (something in the cluster adds it): "
        hint = f"`{shlex.join(words)}` shows what it printed; whoever adds this container to pods can repair it."
    message = " ".join(state.get("message", "its container ends at once").split())
    return ClusterError(f"pod {name}: {which}{_CRASHED}: {message}", hint=hint)


def _describe(name: str, state: Mapping[str, Any], phase: str = "") -> str:
    words = [phase, state.get("reason", ""), " ".join(state.get("message", "").split())]
    return f"pod {name}: " + ": ".join(word for word in words if word)


def _failures(pods: PodSet) -> Iterator[str]:
    """Yield why the StatefulSet could not make a pod, such as a quota."""
    for event in reversed(_list_events(pods, f"involvedObject.kind=StatefulSet,involvedObject.name={pods.cluster}")):
        if event.get("type") == "Warning":
            yield f"{pods.cluster}: {event.get('reason', '')}: {' '.join(event.get('message', '').split())}"


def _pod_failures(pods: PodSet, found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield why a container is not made yet, such as a volume that cannot be mounted, which only events tell."""
    for pod in found:
        statuses = pod.get("status", {}).get("containerStatuses", ())
        reasons = {each.get("state", {}).get("waiting", {}).get("reason") for each in statuses}
        if not reasons & _SILENT or "deletionTimestamp" in pod["metadata"]:
            continue
        for event in reversed(_list_events(pods, f"involvedObject.uid={pod['metadata']['uid']}")):
            if event.get("reason") in _OVERCOME:
                break
            if event.get("type") == "Warning":
                yield _describe(pod["metadata"]["name"], event)
                break


def _list_events(pods: PodSet, selector: str) -> list[dict[str, Any]]:
    """Return the events of an object, the latest last; none if the user has no right to read them."""
    found = _call([*_options(pods), "get", "events", f"--field-selector={selector}", "--output=json"])
    items: list[dict[str, Any]] = json.loads(found.stdout)["items"] if found.returncode == 0 else []
    return sorted(items, key=_event_time)


def _event_time(event: Mapping[str, Any]) -> str:
    """Return when an event last occurred, to the second: those of one second stay in their order."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return (next(filter(None, times), None) or "")[:19]


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


def place_for_manifests(topology: ClusterTopology, request: KubernetesSpec) -> ClusterTopology:
    """Return a topology on pods that do not exist yet, in which each has its own ports and all of its GPUs."""
    pods = PodSet(topology.cluster, request.context or "", request.namespace or "")
    placed = place(topology, pods, request.image)
    for host in placed.hosts:
        tasks = [task for task in (*placed.tasks, *placed.reserved) if task.host == host.name]
        taken, gpus = placed.ports_on(host.name), itertools.count()
        free = (port for port in itertools.count(settings.FIRST_PORT) if port not in taken)
        ports = {task.name: next(free) for task in tasks if task.port is None}
        placed = placed.with_allocation(
            ports, {task.name: [str(next(gpus)) for _ in range(task.gpus)] for task in placed.on(host.name)}
        )
    return placed


def _connect(pods: PodSet, host: str) -> str:
    words = ["kubectl", *_options(pods), "exec", "-i"]  # found on PATH: the place of a host outlives an upgrade
    return f"{shlex.join(words)} {{terminal:-t}} {pods.pod(host)} -c {CONTAINER} --"


def release(pods: PodSet) -> None:
    """Delete what `up` has applied for a cluster; volumes stay."""
    try:
        delete_topology(pods)
        _run(pods, "delete", _KINDS, f"--selector={_selector(pods.cluster)}")
    except ClusterError as error:
        hint = f"{error.hint} `tfcluster down -c {pods.cluster}` then deletes the pods.".lstrip()
        raise ClusterError(f"the pods may still exist: {error.message}", hint=hint, exit_code=error.exit_code) from None


def not_started_here(cluster: str, request: KubernetesSpec) -> ClusterError:
    """Build the error for a cluster whose pods, if there are any, this machine has not made."""
    place = [f"--{name}={value}" for name in ("context", "namespace") if (value := getattr(request, name))]
    command = shlex.join(["kubectl", *place, "delete", f"{_KINDS},secrets", f"--selector={_selector(cluster)}"])
    return ClusterError(
        f"cluster {cluster!r} was not started from this machine, and no pods of it were found",
        hint=f"`tfcluster up` makes its pods. To delete what may be left of earlier ones: `{command}`.",
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
    context = [f"--context={pods.context}"] if pods.context else []  # that of kubectl in a topology of `manifests`
    return [*context, f"--namespace={pods.namespace}"]


def is_installed() -> bool:
    """Return whether this machine has kubectl."""
    return shutil.which("kubectl") is not None


def _program() -> str:
    return find_program("kubectl", "Install it, or type this where it is.")


def _run(pods: PodSet, *arguments: str, stdin: str = "") -> str:
    return _kubectl([*_options(pods), *arguments], stdin)


def _kubectl(arguments: list[str], stdin: str = "") -> str:
    """Run kubectl, and return what it prints."""
    result = _call(arguments, stdin)
    if result.returncode:
        raise _failure(arguments, result.stderr)
    return result.stdout


def _call(arguments: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    timeout = [f"--request-timeout={_READ_SECONDS:g}s"] if "get" in arguments else []
    argv, hint = [_program(), *timeout, *arguments], _hint(arguments, *_SERVER_HINT)
    try:
        with _showing_call(arguments):
            return run_program(argv, stdin, _COMMAND_SECONDS, hint)
    except ClusterError as error:
        raise ClusterError(error.message, hint=hint, exit_code=ExitCode.UNREACHABLE) from None


@contextlib.contextmanager
def show_slow_calls(show: Callable[[str], None]) -> Iterator[None]:
    """Call `show` with a line, in a thread, while a command of kubectl takes long."""
    token = _show_call.set(show)
    try:
        yield
    finally:
        _show_call.reset(token)


@contextlib.contextmanager
def _showing_call(arguments: list[str]) -> Iterator[None]:
    show = _show_call.get()
    if show is None:
        yield
        return
    words = [word for word in arguments if not word.startswith("-") or word.startswith("--raw=")]
    objects = ["selfsubjectaccessreviews"] if words == ["create"] else []
    line = f"waits for kubectl {' '.join([*words, *objects])}"
    timer = threading.Timer(_SILENT_SECONDS, show, [line])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # so that no line is shown after the call


def _failure(arguments: list[str], stderr: str) -> ClusterError:
    """Build the error for a command of kubectl that failed: the API server does not answer, or refuses it.

    What its log prints before the sentence that counts is left out.
    """
    lines = [line for line in map(str.strip, stderr.splitlines()) if line and not line.startswith("WARNING")]
    logged = [_read_log_line(line) for line in lines if _LOG_LINE.match(line)]
    said = [line for line in lines if not _LOG_LINE.match(line)] or logged
    text = " ".join([*dict.fromkeys(said)][-3:])
    code, hint = ExitCode.FAILED, ""
    if "(Forbidden)" in text or "webhook" in text:
        pass  # the server answers, and knows the user
    elif _NO_LOGIN.search(text):
        code, hint = ExitCode.UNREACHABLE, _hint(arguments, *_LOGIN_HINT)
    elif _NO_ANSWER.search(text):
        code, hint = ExitCode.UNREACHABLE, _hint(arguments, *_SERVER_HINT)
    elif _NO_CONTEXT.search(text):
        code, hint = (
            ExitCode.USAGE,
            "`kubectl config get-contexts` lists them; KUBECONFIG names the file that has them.",
        )
    return ClusterError(f"kubectl failed: {text.removeprefix('error: ')}", hint=hint, exit_code=code)


def _read_log_line(line: str) -> str:
    """Return the error in a line of kubectl's log."""
    text = line[line.index("] ") + 2 :]
    quoted = re.search(r'\berr="((?:[^"\\]|\\.)*)"', text)
    return quoted[1].replace('\\"', '"') if quoted else text


def _hint(arguments: list[str], words: str, purpose: str) -> str:
    """Return a hint to type a command of kubectl for the context that other arguments name."""
    context = [word for word in arguments if word.startswith("--context=")]
    return f"`{shlex.join(['kubectl', *context, *words.split()])}` {purpose}"
