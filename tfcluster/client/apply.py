"""Apply the plan of `up` or `scale` on all hosts of a cluster (the second half of reconcile)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster, read_registry, record_spec, register, unregister
from tfcluster.client.down import stop_hosts
from tfcluster.client.preflight.preflight import close_inspectors
from tfcluster.client.rpc.agent_client import AgentDisconnectedError
from tfcluster.client.rpc.parallel import StreamContext, hints_of, lines_of, merge_streams, warn
from tfcluster.client.up import UpPlan
from tfcluster.core.forwarding import Certificate
from tfcluster.core.hosts import Host
from tfcluster.core.plan import ActionKind, data_losses, summary, terminated_tasks
from tfcluster.core.status import ClusterStatus, HostUnavailable, aggregate_status
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import ApplyRequest


class PlanConflictError(ClusterError):
    """The cluster has changed since the plan was made, and this host has not carried it out: plan again."""


def apply(plan: UpPlan, *, accept_any_loss: bool, show_status: Callable[[ClusterStatus], None]) -> None:
    """Apply a plan on all hosts.

    The deciding host applies it first, then all others do in parallel. If two commands change the cluster concurrently,
    the deciding host rejects one of them before anything has changed.

    When this returns, every task that has to start is starting; it need not be ready yet.

    A PlanConflictError says that the cluster has changed since the plan was made.

    Args:
        accept_any_loss: Accept every data loss, including one that the plan does not list, such as that of a run
            that was submitted since.
        show_status: Called with the cluster's status at each change while tasks are being stopped.
    """
    try:
        if plan.actions:
            _apply_on_all(plan, None if accept_any_loss else data_losses(plan.actions), show_status)
        if plan.source is not None:
            record_spec(plan.cluster.name, plan.source)
        if plan.removed_hosts:
            _register(plan, _stop_removed_hosts(plan))
    finally:
        close_inspectors(plan.hosts)


def _apply_on_all(plan: UpPlan, accepted_loss: list[str] | None, show_status: Callable[[ClusterStatus], None]) -> None:
    topology = plan.observed.topology if plan.observed else plan.topology
    statuses: dict[str, ClusterStatus | HostUnavailable] = {}
    certificates: dict[str, Certificate] = {}
    if plan.without_certificate:
        from tfcluster.client.preflight.certificates import issue_certificates  # imports cryptography, which is slow

        certificates = issue_certificates(plan.cluster.name, plan.without_certificate)

    def apply_on(hosts: Collection[str]) -> dict[str, ClusterError]:
        errors: dict[str, ClusterError] = {}
        streams = {host: partial(_apply_on_host, plan, accepted_loss, certificates.get(host), host) for host in hosts}
        with contextlib.closing(merge_streams(streams)) as items:
            for host, item in items:
                if isinstance(item, ClusterError):
                    errors[host] = item
                else:
                    statuses[host] = item
                    show_status(aggregate_status(topology, statuses))
        return errors

    # Write the registry before anything starts: if this command dies, the next one still knows the hosts.
    is_new = read_registry(plan.cluster.name) is None
    _register(plan, plan.removed_hosts)
    deciding_host = _deciding_host(plan)
    if errors := apply_on([deciding_host]):
        error = errors[deciding_host]
        is_unknown = isinstance(error, AgentDisconnectedError) or error.exit_code is ExitCode.UNREACHABLE
        if is_new and plan.observed is None and not is_unknown and not isinstance(error, PlanConflictError):
            unregister(plan.cluster.name)
        raise error
    if errors := apply_on([host for host in plan.hosts if host != deciding_host]):
        raise _combined(plan.all_hosts, errors)
    # A `status` that ran before anything was up may have removed the registry entry: write it again.
    _register(plan, plan.removed_hosts)


def _combined(cluster: Cluster, errors: dict[str, ClusterError]) -> ClusterError:
    """Build the error for hosts that failed to apply a plan that all other hosts have applied."""
    conflicts = [error for error in errors.values() if isinstance(error, PlanConflictError)]
    if len(conflicts) == len(errors):
        return conflicts[0]
    completion = "`tfcluster up` again completes it, `tfcluster down` stops the whole cluster."
    return ClusterError(
        "\n".join([*lines_of(cluster, errors), "The other hosts have applied the change."]),
        hint=" ".join(filter(None, [hints_of(errors), completion])),
        exit_code=max(error.exit_code for error in errors.values()),
    )


def _deciding_host(plan: UpPlan) -> str:
    topology = plan.observed.topology if plan.observed else plan.topology
    host = topology.head().host
    return host if host in plan.hosts else plan.reachable.head


def _register(plan: UpPlan, other_hosts: Collection[Host]) -> None:
    """Write the cluster's hosts to the registry, and further hosts that may still run some of its tasks."""
    cluster = plan.cluster
    register(Cluster(cluster.name, (*cluster.hosts.values(), *other_hosts), cluster.head))


def _apply_on_host(
    plan: UpPlan,
    accepted_loss: list[str] | None,
    certificate: Certificate | None,
    host: str,
    context: StreamContext,
) -> Iterator[ClusterStatus]:
    """Apply the plan on one host, and yield its status at each change while tasks are being stopped."""
    observed = plan.hosts[host].observed
    client = plan.all_hosts.connect(host)
    request = ApplyRequest(
        base_revision=observed.revision if observed else None,
        topology=plan.topology,
        summary=_summary_on(plan, host),
        accepted_loss=None if accepted_loss is None else tuple(accepted_loss),
        terminating=tuple(terminated_tasks(plan.actions)),
        certificate=certificate,
    )
    stream = client.stream(request, start=observed is None)
    with contextlib.closing(stream):
        try:
            yield from context.events(stream)
            conflict = stream.result().conflict
        except ClusterError as error:
            stream.close_and_reap()
            if isinstance(error, AgentDisconnectedError) and observed is None and not client.transport.is_up():
                raise AgentDisconnectedError(
                    f"the agent of {plan.topology.cluster!r} on {host} died before it had started a task: none runs",
                    hint="Type the command again.",
                ) from None
            raise
    if conflict is not None:
        raise PlanConflictError(
            f"cluster {plan.topology.cluster!r} has changed since the plan was made ({conflict}): nothing was done",
            hint="Run the command again: it plans from the current state.",
        )


def _summary_on(plan: UpPlan, host: str) -> str:
    """Summarize the planned actions on one host, for its event log."""
    actions = [action for action in plan.actions if action.task is None or action.task.host == host]
    updates = dict.fromkeys(action.cause for action in actions if action.kind is ActionKind.UPDATE)
    return ", ".join(filter(None, [summary(actions), *updates]))


def _stop_removed_hosts(plan: UpPlan) -> list[Host]:
    """Stop everything that the cluster has on the hosts that are removed from it.

    Return the hosts on which tasks may still be running.
    """
    remaining = {host.name: host for host in plan.removed_hosts if host.name not in plan.hosts}
    removed_hosts = {host.name: host for host in plan.removed_hosts if host.name in plan.hosts}
    for name, status in stop_hosts(plan.all_hosts, removed_hosts, settings.STOP_GRACE_SECONDS):
        if isinstance(status, ClusterError):
            warn("\n".join(lines_of(plan.all_hosts, {name: status})))
            remaining[name] = removed_hosts[name]
    return list(remaining.values())
