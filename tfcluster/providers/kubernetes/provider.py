"""The provider `kubernetes`: the pods of a StatefulSet that `up` applies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from tfcluster.core.plan import HostStep
from tfcluster.core.secrets import has_secrets
from tfcluster.core.text import pluralize
from tfcluster.core.topology import CLOSED, PS_JOB, ClusterTopology
from tfcluster.errors import ClusterError, usage_error
from tfcluster.protocol.serialization import decode, to_json
from tfcluster.providers.kubernetes import kubectl
from tfcluster.providers.kubernetes.manifests import pod_manifests
from tfcluster.providers.kubernetes.pods import PodSet
from tfcluster.providers.provider import Acquisition, Facts, HostPlan, Provider, Show

if TYPE_CHECKING:
    from tfcluster.providers.kubernetes.request import KubernetesSpec


class KubernetesProvider(Provider["KubernetesSpec"]):
    """The pods of one cluster."""

    name: ClassVar[str] = "kubernetes"
    not_yet: ClassVar[str] = "the pods can be checked once `up` has made them"

    def __init__(self, cluster: str, facts: Facts | None) -> None:
        super().__init__(cluster, facts)
        self.pods = None if facts is None else decode(PodSet, facts, lenient=True)
        self._checked: PodSet | None = None

    @property
    def facts(self) -> Facts | None:
        """The place of the pods as JSON values."""
        return None if self.pods is None else to_json(self.pods)

    @property
    def _known_pods(self) -> PodSet:
        assert self.pods is not None, "a cluster that is registered has them"
        return self.pods

    @classmethod
    def not_started_here(cls, cluster: str, request: KubernetesSpec) -> ClusterError:
        """Return the error for a cluster whose pods, if there are any, this machine has not made."""
        return kubectl.not_started_here(cluster, request)

    def check(self, topology: ClusterTopology, request: KubernetesSpec) -> str:
        """Check that the namespace exists, and that the user may apply the manifests there."""
        pods = self._find_pods(topology, request)
        return f"namespace {pods.namespace!r} of context {pods.context!r} can have the pods"

    def _find_pods(self, topology: ClusterTopology, request: KubernetesSpec) -> PodSet:
        """Return the place for the pods, which is checked; an error says that the cluster has them in another one."""
        # Only here: the current context of kubectl may change until the end.
        if self._checked is None:
            pods = kubectl.find_pods(self.cluster, request)
            self._reject_other_place(pods)
            kubectl.check(pods, with_secrets=has_secrets(topology))
            self._checked = pods
        return self._checked

    def _reject_other_place(self, pods: PodSet) -> None:
        if self.pods not in (None, pods):
            raise usage_error(
                f"cluster {self.cluster!r} has its pods in another namespace or context",
                f"`tfcluster down -c {self.cluster}` stops it there; then `up` starts it here.",
            )

    def plan(self, topology: ClusterTopology, request: KubernetesSpec, show: Show) -> HostPlan:
        """Plan which pods are replaced; without pods that were made from here, nothing is asked."""
        if self.pods is None:
            return HostPlan()
        with kubectl.show_slow_calls(show):
            pods = self._find_pods(topology, request)
            placed, present = kubectl.place(topology, pods, request.image), kubectl.replicas(pods)
            if not present:
                return HostPlan()
            outdated = kubectl.find_outdated(pods, topology, request, max(present, request.pods))
        replaced = tuple(host.name for host in topology.hosts if pods.pod(host.name) in outdated)
        steps = _replacements(topology, outdated)
        return HostPlan(steps, placed, is_complete=present >= request.pods, replaced=replaced)

    def describe(self, topology: ClusterTopology, request: KubernetesSpec) -> str:
        """Return the manifests that `up` applies."""
        return pod_manifests(topology, request).rstrip("\n")

    def acquire(self, topology: ClusterTopology, request: KubernetesSpec, command: Acquisition) -> ClusterTopology:
        """Apply the manifests, and wait until the pods run; those that are no longer wanted stay."""
        with kubectl.show_slow_calls(command.show):
            return self._acquire(topology, request, command)

    def _acquire(self, topology: ClusterTopology, request: KubernetesSpec, command: Acquisition) -> ClusterTopology:
        pods = self._find_pods(topology, request)
        placed, present = kubectl.place(topology, pods, request.image), kubectl.replicas(pods)
        count = max(present, request.pods)
        outdated = kubectl.find_outdated(pods, topology, request, count) if present else []
        adopted = (_adoption(pods, present),) if self.pods is None and present else ()
        command.confirm((*adopted, *_replacements(topology, outdated)))
        self.is_acquired = True
        if self.pods is None:  # before anything is applied: `down` deletes what an interrupt leaves
            self.pods = pods
            command.remember(placed.hosts)
            if topology.network == CLOSED:
                command.warn(
                    "note: a network plugin has to enforce the NetworkPolicy that closes the ports, which cannot be "
                    "known from here; to try, connect to the address of a task from another pod: it must time out"
                )
        if len(outdated) == present:  # no new pod starts tasks that this command is about to change; or all are gone
            kubectl.delete_topology(pods)
        if replaced := kubectl.apply(pods, topology, request, count):
            late = [name for name in replaced if name not in outdated]  # another `up` has changed them since
            command.confirm(_replacements(topology, late))
            kubectl.replace_pods(pods, replaced)
        kubectl.wait_until_running(pods, request.pods, command.show)
        return placed

    def locate(self, topology: ClusterTopology, request: KubernetesSpec) -> ClusterTopology | None:
        """Find the pods by the name and the labels of their StatefulSet."""
        if not kubectl.is_installed() or not kubectl.exists(pods := kubectl.find_pods(self.cluster, request)):
            return None
        self.pods = pods
        return kubectl.place(topology, pods, request.image)

    def store_topology(self, topology: ClusterTopology, show: Show) -> None:
        """Apply the topology, with which a pod that replaces another one starts its tasks."""
        if any(task.lost_secrets for task in (*topology.tasks, *topology.reserved)):
            raise ClusterError("the values of secrets are not known here", hint="`up` with these values stores them.")
        with kubectl.show_slow_calls(show):
            kubectl.apply_topology(self._known_pods, topology)

    def forget_topology(self) -> None:
        """Delete the topology, so that no pod starts the tasks again."""
        kubectl.delete_topology(self._known_pods)

    def reject_foreign(self, topology: ClusterTopology, request: KubernetesSpec) -> None:
        """Raise an error if there are pods that were not made from here."""
        pods = self._find_pods(topology, request)
        if self.pods is None and kubectl.replicas(pods):
            raise usage_error(
                f"namespace {pods.namespace!r} has pods of a cluster {self.cluster!r} that was not started from here",
                "Give this one another `name:`, as a launch deletes its pods at the end.",
            )

    def remove_surplus(self, topology: ClusterTopology, request: KubernetesSpec) -> None:
        """Delete the pods that the spec no longer has."""
        if self.pods is not None and kubectl.replicas(self.pods) > request.pods:
            kubectl.apply(self.pods, topology, request, request.pods)

    @property
    def place(self) -> str:
        """The namespace that the cluster is in."""
        return f"in pods of namespace {self._known_pods.namespace!r}"

    def describe_release(self) -> str:
        """Return that the pods are deleted."""
        return "deletes the pods"

    def check_release(self) -> None:
        """Raise an error if the API server does not answer, or the pods may not be deleted."""
        kubectl.check_release(self._known_pods)

    def release(self) -> None:
        """Delete what `up` has applied; volumes stay."""
        kubectl.release(self._known_pods)


def _replacements(topology: ClusterTopology, names: Collection[str]) -> tuple[HostStep, ...]:
    """Return the step that replaces pods, with all that runs in them; none without pods."""
    if not names:
        return ()
    tasks = [task for task in topology.tasks if f"{topology.cluster}-{task.host.removeprefix('pod')}" in names]
    variables = [f"the variables of {task.short}" for task in tasks if task.job == PS_JOB]
    pods = ", ".join(names)
    return (HostStep(f"{pods} must be replaced", (*variables, f"the runs that use tasks in {pods}")),)


def _adoption(pods: PodSet, count: int) -> HostStep:
    """Return the step that continues with pods of a cluster that was not started from here."""
    return HostStep(
        f"namespace {pods.namespace!r} has {pluralize(count, 'pod')} of a cluster {pods.cluster!r} that was not "
        "started from here",
        ("what somebody else may run in them",),
        "If that cluster is not yours, give this one another `name:`.",
    )


PROVIDER = KubernetesProvider
