"""The pods of a cluster whose spec has `kubernetes:`: show what is applied, apply it, and wait for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfcluster.client.cluster import Cluster, read_registry, register, unregister
from tfcluster.client.rpc.parallel import warn
from tfcluster.core.topology import CLOSED, ClusterTopology
from tfcluster.errors import usage_error
from tfcluster.providers import kubernetes
from tfcluster.providers.manifests import job_manifests, pod_manifests

if TYPE_CHECKING:
    from tfcluster.core.kubernetes import PodSet
    from tfcluster.core.plan import PlannedAction
    from tfcluster.spec.kubernetes import KubernetesSpec
    from tfcluster.spec.slurm import SlurmSpec


def expect_pods(topology: ClusterTopology, request: KubernetesSpec | SlurmSpec | None) -> KubernetesSpec:
    """Return the request of a spec for pods; one without `kubernetes:` raises an error."""
    from tfcluster.spec.kubernetes import KubernetesSpec

    if not isinstance(request, KubernetesSpec):
        raise usage_error(f"{topology.spec} has no `kubernetes:`", "Only pods have manifests.")
    return request


def describe(topology: ClusterTopology, request: KubernetesSpec) -> str:
    """Return the manifests that `up` applies."""
    return pod_manifests(topology, request).rstrip("\n")


def describe_job(topology: ClusterTopology, request: KubernetesSpec, arguments: Sequence[str]) -> str:
    """Return the manifests of a Job that runs a command for each task, without tfcluster."""
    return job_manifests(topology, request, arguments).rstrip("\n")


@dataclass(frozen=True)
class Consent:
    """What a person must agree to; each function raises an error if they do not."""

    replace: Callable[[list[str]], None]  # pods, by name, which an edit of the spec changes
    adopt: Callable[[PodSet], None]  # the pods of a cluster that was not started from here
    change: Callable[[Sequence[PlannedAction]], None]  # what a cluster that is up has to do before it uses more pods


def _agree(what: object) -> None:
    """Agree to everything."""


@dataclass(frozen=True)
class PodPlan:
    """What `up` would do with pods."""

    outdated: list[str] = field(default_factory=list)  # the pods that it would replace, by name
    placed: ClusterTopology | None = None  # the topology on the pods; None if it would make pods first
    actions: Sequence[PlannedAction] = ()  # what a cluster that is up would do then


def start(
    topology: ClusterTopology, request: KubernetesSpec, show: Callable[[str], None], consent: Consent
) -> ClusterTopology:
    """Apply the manifests of a cluster, wait for its pods, and return its topology with them as its hosts.

    `show` is called with a line while a pod does not run. Without consent to what an edit replaces, nothing is applied.
    Pods that are no longer wanted stay until `remove_surplus`.
    """
    pods = kubernetes.find_pods(topology.cluster, request)
    kubernetes.check(pods)
    return _start(topology, request, pods, show, consent)


def plan(topology: ClusterTopology, request: KubernetesSpec) -> PodPlan:
    """Plan what `up` would do with pods; this changes nothing."""
    registered = read_registry(topology.cluster)
    if registered is None:
        return PodPlan()
    pods = kubernetes.find_pods(topology.cluster, request)
    _reject_other_place(registered, pods)
    placed, present = kubernetes.place(topology, pods, request.image), kubernetes.replicas(pods)
    if not present:
        return PodPlan()
    outdated = kubernetes.find_outdated(pods, topology, request, max(present, request.pods))
    if present >= request.pods:
        return PodPlan(outdated, placed)
    return PodPlan(outdated, None, _plan_growth(registered, placed))


def _plan_growth(registered: Cluster, placed: ClusterTopology) -> Sequence[PlannedAction]:
    """Plan for pods that do not exist yet, by what the cluster reports from those that exist."""
    from tfcluster.client.preflight.preflight import abort, observe_hosts
    from tfcluster.core.plan import plan as plan_actions
    from tfcluster.core.reconcile import merge_observed, merge_with_observed

    hosts = observe_hosts(registered, dry=True)
    abort(registered, hosts)
    observed = merge_observed([each.observed for each in hosts.values() if each.observed is not None])
    return () if observed is None else plan_actions(merge_with_observed(placed, observed), observed)


def _reject_other_place(registered: Cluster, pods: PodSet) -> None:
    if registered.pods != pods:
        raise usage_error(
            f"cluster {pods.cluster!r} is up on other hosts, or has its pods in another namespace or context",
            f"`tfcluster down -c {pods.cluster}` stops it there; then `up` starts it here.",
        )


def _start(
    topology: ClusterTopology,
    request: KubernetesSpec,
    pods: PodSet,
    show: Callable[[str], None],
    consent: Consent,
) -> ClusterTopology:
    registered = read_registry(topology.cluster)
    if registered is not None:
        _reject_other_place(registered, pods)
    placed, present = kubernetes.place(topology, pods, request.image), kubernetes.replicas(pods)
    if registered is None and present:
        consent.adopt(pods)
    count = max(present, request.pods)
    if outdated := kubernetes.find_outdated(pods, topology, request, count) if present else []:
        consent.replace(outdated)
    if registered is not None and 0 < present < request.pods:
        consent.change(_plan_growth(registered, placed))
    if registered is None:  # before anything is applied: `down` deletes what an interrupt leaves
        register(Cluster(topology.cluster, placed.hosts, topology.head().host, pods=pods))
        if topology.network == CLOSED:
            warn(
                "note: a network plugin has to enforce the NetworkPolicy that closes the ports, which cannot be known "
                "from here; to try, connect to the address of a task from another pod: it must time out"
            )
    if replaced := kubernetes.apply(pods, topology, request, count):
        if late := [name for name in replaced if name not in outdated]:  # another `up` has changed them since
            consent.replace(late)
        kubernetes.replace_pods(pods, replaced)
    kubernetes.wait_until_running(pods, request.pods, show)
    return placed


@contextlib.contextmanager
def temporary_pods(
    topology: ClusterTopology, request: KubernetesSpec, show: Callable[[str], None]
) -> Iterator[ClusterTopology]:
    """Yield the topology of a cluster that is not up, with pods as its hosts; they are deleted with the context."""
    # Only here: the current context of kubectl may change until the end.
    pods = kubernetes.find_pods(topology.cluster, request)
    kubernetes.check(pods)
    registered = read_registry(topology.cluster)
    if kubernetes.replicas(pods) and (registered is None or registered.pods != pods):
        raise usage_error(
            f"namespace {pods.namespace!r} has pods of a cluster {topology.cluster!r} that was not started from here",
            "Give this one another `name:`, as a launch deletes its pods at the end.",
        )
    try:
        yield _start(topology, request, pods, show, Consent(_agree, _agree, _agree))
    finally:
        registered = read_registry(topology.cluster)
        if registered is None or registered.pods == pods:
            kubernetes.release(pods)
            unregister(topology.cluster)


def remove_surplus(topology: ClusterTopology, request: KubernetesSpec) -> None:
    """Remove the pods that the spec no longer has, on which nothing of the cluster runs any more."""
    registered = read_registry(topology.cluster)
    pods = None if registered is None else registered.pods
    if pods is not None and kubernetes.replicas(pods) > request.pods:
        kubernetes.apply(pods, topology, request, request.pods)
