"""The hosts that a provider acquires for a cluster: plan that, acquire them, and release those of a launch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfcluster.client.cluster import Cluster, kill_prestarted_agent, read_registry, register, unregister
from tfcluster.client.preflight import preflight
from tfcluster.client.preflight.checks import ALL_HOSTS, CheckResult, Severity, failed_check
from tfcluster.client.rpc.parallel import warn
from tfcluster.core.hosts import Host
from tfcluster.core.plan import HostStep, PlannedAction
from tfcluster.core.plan import plan as plan_actions
from tfcluster.core.reconcile import merge_observed, merge_with_observed
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.providers import load_provider
from tfcluster.providers.provider import Acquisition, HostPlan, Provider, Show

if TYPE_CHECKING:
    from tfcluster.providers.request import HostRequest

#: A change of a cluster that can lose data: of its hosts, or of its tasks.
Change = HostStep | PlannedAction


@dataclass(frozen=True)
class Changes:
    """What `up` would do with the hosts of a cluster, and then with the tasks on those that exist."""

    hosts: HostPlan
    changes: tuple[Change, ...]


def provider_of(cluster: str, request: HostRequest) -> Provider[Any]:
    """Return what provides the hosts of a cluster, or can; an error says that it is up on other hosts."""
    registered = read_registry(cluster)
    if registered is None:
        return load_provider(request.key)(cluster, None)
    if registered.provider is None or registered.provider.name != request.key:
        where = "on other hosts" if registered.provider is None else registered.provider.place
        raise usage_error(
            f"cluster {cluster!r} is up {where}, and this spec has `{request.key}:`",
            f"`tfcluster down -c {cluster}` stops it there; then `up` starts it here.",
        )
    return registered.provider


def plan_hosts(topology: ClusterTopology, request: HostRequest, show: Show) -> Changes:
    """Plan what `up` does with hosts, and what that and new hosts mean for tasks. This changes nothing."""
    provider = provider_of(topology.cluster, request)
    plan = provider.plan(topology, request, show)
    return Changes(plan, plan.steps) if plan.is_complete else _with_tasks(plan, topology)


def _with_tasks(plan: HostPlan, topology: ClusterTopology) -> Changes:
    """Return a plan with what tasks on hosts that stay have to do then, unless the preflight plans all of it."""
    registered = read_registry(topology.cluster)
    if registered is None or plan.placed is None or (plan.is_complete and not plan.steps):
        return Changes(plan, plan.steps)
    if not registered.hosts.keys() - {*plan.replaced}:
        return Changes(plan, plan.steps)
    return Changes(plan, (*plan.steps, *_plan_tasks(registered.without(plan.replaced), plan.placed)))


def _plan_tasks(cluster: Cluster, placed: ClusterTopology) -> Sequence[PlannedAction]:
    """Plan for hosts that do not exist yet, by what the cluster reports from others."""
    hosts = preflight.observe_hosts(cluster, dry=True)
    preflight.abort(cluster, hosts)
    observed = merge_observed([each.observed for each in hosts.values() if each.observed is not None])
    return () if observed is None else plan_actions(merge_with_observed(placed, observed), observed)


def describe_hosts(topology: ClusterTopology, request: HostRequest) -> str:
    """Return what is submitted or applied for hosts that do not exist yet."""
    return provider_of(topology.cluster, request).describe(topology, request)


def acquire_hosts(
    topology: ClusterTopology,
    request: HostRequest,
    show: Show,
    confirm: Callable[[Sequence[Change]], None],
) -> ClusterTopology:
    """Get the hosts of a cluster, and return its topology on them.

    `show` is called with a line while one waits for them. `confirm` raises an error without consent to what is lost; it
    is called with the whole plan before anything changes, and with later steps if others have changed the hosts since.
    """
    kill_prestarted_agent()  # all tasks are elsewhere, and this may take hours
    provider = provider_of(topology.cluster, request)
    confirm(_with_tasks(provider.plan(topology, request, show), topology).changes)
    try:
        return provider.acquire(topology, request, _acquisition(topology, provider, show, confirm))
    except KeyboardInterrupt:
        if left := provider.left_by_interrupt():
            warn(left)
        raise


def _acquisition(
    topology: ClusterTopology,
    provider: Provider[Any],
    show: Show,
    confirm: Callable[[Sequence[Change]], None],
) -> Acquisition:
    def remember(hosts: Sequence[Host]) -> None:
        register(Cluster(topology.cluster, tuple(hosts), topology.head().host, provider))

    return Acquisition(show, warn, remember, lambda: unregister(topology.cluster), confirm)


@contextlib.contextmanager
def temporary_hosts(topology: ClusterTopology, request: HostRequest, show: Show) -> Iterator[ClusterTopology]:
    """Acquire hosts for a cluster that is not up, yield its topology on them, and release them at the end.

    They are also released if the wait for them is interrupted.
    """
    kill_prestarted_agent()
    provider = provider_of(topology.cluster, request)
    provider.reject_foreign(topology, request)
    placed = None
    try:
        placed = provider.acquire(topology, request, _acquisition(topology, provider, show, lambda steps: None))
        yield placed
    except BaseException:
        try:
            _release(provider, placed)
        except ClusterError as error:  # the first error is the one to raise
            warn(f"{error.message}\nhint: {error.hint}")
        raise
    _release(provider, placed)


def _release(provider: Provider[Any], placed: ClusterTopology | None) -> None:
    """Release the hosts of a launch, if it has begun to use them; if that fails, `down` does it."""
    if not provider.is_acquired:
        return
    if placed is not None:  # the end of the cluster has removed it from the registry
        register(Cluster(placed.cluster, placed.hosts, placed.head().host, provider))
    provider.release()
    unregister(provider.cluster)


def store_topology(topology: ClusterTopology, show: Callable[[str], None]) -> None:
    """Keep the topology of a cluster that is up where a host finds it that replaces another one."""
    registered = read_registry(topology.cluster)
    if registered is None or registered.provider is None:
        return
    try:
        registered.provider.store_topology(topology, show)
    except ClusterError as error:
        warn(f"warning: a host that is replaced does not start its tasks by itself: {error.message}. {error.hint}")


def remove_surplus(topology: ClusterTopology, request: HostRequest) -> None:
    """End the hosts that the spec no longer has, on which nothing of the cluster runs any more."""
    provider_of(topology.cluster, request).remove_surplus(topology, request)


def check_hosts(
    topology: ClusterTopology, request: HostRequest | None, progress: preflight.Progress | None = None
) -> tuple[list[CheckResult], ExitCode]:
    """Check the hosts of a spec as `up` does; those of a provider, if they exist, and the provider."""
    if request is None:
        return preflight.check_hosts(topology, progress)
    try:
        provider = provider_of(topology.cluster, request)
        result = provider.check(topology, request)
        plan = provider.plan(topology, request, lambda line: None)
    except ClusterError as error:
        return [failed_check(ALL_HOSTS, request.key, error)], ExitCode.FAILED
    if plan.placed is None or not plan.is_complete:
        return [CheckResult(ALL_HOSTS, request.key, Severity.NOTE, result, provider.not_yet)], ExitCode.DONE
    results, code = preflight.check_hosts(plan.placed, progress)
    return [CheckResult(ALL_HOSTS, request.key, Severity.OK, result), *results], code
