"""Plan `up` and `scale` (run the preflight, compare observed and desired state), and apply the plan on all hosts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster, read_registry, record_spec, register, unregister
from tfcluster.client.down import stop_hosts
from tfcluster.client.preflight.checks import VERSIONS, CheckResult, HostPreflight, Severity, to_error
from tfcluster.client.preflight.preflight import (
    Preflight,
    Progress,
    abort,
    close_inspectors,
    find_changed_hosts,
    hosts_without_certificate,
    observe_hosts,
    run_preflight,
)
from tfcluster.client.resolve import check_source
from tfcluster.client.rpc.agent_client import AgentDisconnectedError
from tfcluster.client.rpc.parallel import (
    StreamContext,
    combine_errors,
    format_host_errors,
    merge_streams,
    starting_host,
    warn,
)
from tfcluster.core.forwarding import Certificate
from tfcluster.core.hosts import THIS_MACHINE, Host, is_same_place
from tfcluster.core.plan import (
    ActionKind,
    PlannedAction,
    data_losses,
    kept_servers,
    plan,
    summary,
    terminated_tasks,
)
from tfcluster.core.reconcile import ObservedState, scale
from tfcluster.core.status import ClusterStatus, HostUnavailable, aggregate_status
from tfcluster.core.text import summarize_list
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.os.files import write_atomically
from tfcluster.paths import journal_path, make_private_folder, state_home
from tfcluster.protocol.api.cluster import ApplyRequest
from tfcluster.transport.errors import not_running


@dataclass(frozen=True)
class UpPlan:
    """The plan of `up` or `scale`, with the preflight that it is based on."""

    cluster: Cluster  # with the hosts that it will have
    all_hosts: Cluster  # the cluster with these hosts and those that are removed from it
    removed_hosts: tuple[Host, ...]
    topology: ClusterTopology  # the desired one, with every port allocated
    observed: ObservedState | None  # the state from which the plan starts; None if the cluster is not running
    actions: tuple[PlannedAction, ...]
    hosts: Mapping[str, HostPreflight]  # of each host, including the removed ones that can be reached
    unexamined: Sequence[CheckResult] = ()  # what a dry run could not check
    without_certificate: Sequence[str] = ()  # the hosts that get a certificate
    source: str | None = None  # the result of `spec_source` for `up`; None for `scale`, which keeps the cluster's spec
    unreachable: tuple[str, ...] = ()  # the hosts on which nothing is planned

    @property
    def reachable(self) -> Cluster:
        """Return the cluster without the hosts that cannot be reached."""
        return self.cluster.without(self.unreachable)

    @property
    def result(self) -> ClusterTopology:
        """Return the topology that the cluster has once the plan is applied; without actions, nothing is applied."""
        if self.actions or self.observed is None:
            return self.topology
        observed = self.observed.topology
        return replace(self.topology, generation=observed.generation, kept=observed.kept)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        versions = sorted({each.tensorflow for each in self.hosts.values() if each.tensorflow})
        return {
            "cluster": self.topology.cluster,
            "tensorflow": ", ".join(versions),
            "operations": [action.to_json() for action in self.actions],
            "lost": data_losses(self.actions),
            "not_examined": [{"host": each.host, "what": each.text} for each in self.unexamined],
        }


def plan_up(
    topology: ClusterTopology,
    source: str,
    *,
    dry: bool,
    progress: Progress | None = None,
    allow_version_mismatch: bool = False,
    replace_spec: bool = False,
) -> UpPlan:
    """Run the preflight of all hosts and plan; this starts no task, but agents on the hosts that have none.

    Args:
        dry: Change nothing of a cluster that is up, do not run `setup:` of the spec, and release the hosts.
        progress: Called with the number of hosts examined so far, if there are several.
        replace_spec: Also change a running cluster that was started from another spec.

    Returns:
        The plan. Apply it with `apply`, or release the hosts with `abort`.

    Raises:
        ClusterError: The hosts cannot run the cluster; the message lists every problem of every host. Or the cluster
            is running, and was started from another spec.
    """
    if not replace_spec:
        check_source(topology.cluster, source)
    desired = {host.name for host in topology.hosts}
    removed_hosts = tuple(host for host in _registered_hosts(topology) if host.name not in desired)
    all_hosts = Cluster(topology.cluster, (*topology.hosts, *removed_hosts), topology.head().host)
    cluster = all_hosts.without([host.name for host in removed_hosts])

    with _observed_hosts(all_hosts, dry=dry, progress=progress) as hosts:
        _skip_unreachable(removed_hosts, hosts)
        preflight = run_preflight(all_hosts, hosts, lambda observed: topology)
        planned = _plan(cluster, all_hosts, removed_hosts, preflight, allow_version_mismatch, dry=dry)
        return replace(planned, source=source)


def plan_scale(cluster: Cluster, counts: Mapping[str, int], *, dry: bool, progress: Progress | None = None) -> UpPlan:
    """Plan to scale jobs of a running cluster to another number of tasks.

    `progress` is called with the number of hosts examined so far, if there are several. The caller applies the plan
    with `apply`, or releases the hosts with `abort`.
    """

    def scaled_topology(observed: ObservedState | None) -> ClusterTopology:
        if observed is None:
            raise not_running(cluster.name)
        return scale(observed.topology, counts)

    if cluster.is_local and not cluster.connect_head().transport.is_up():
        raise not_running(cluster.name)  # do not start an agent for this
    with _observed_hosts(cluster, dry=dry, progress=progress) as hosts:
        if all(each.problems for each in hosts.values()):  # no host can say what is running
            raise next(error for each in hosts.values() for _, error in each.problems)
        unreachable = {host: error for host, each in hosts.items() if (error := each.reach_problem()) is not None}
        reached = {host: each for host, each in hosts.items() if host not in unreachable}
        preflight = run_preflight(cluster, reached, scaled_topology)
        plan = _plan(cluster, cluster, (), preflight, True, dry=dry)
        return _without_unreachable_hosts(plan, unreachable) if unreachable else plan


def _without_unreachable_hosts(plan: UpPlan, unreachable: Mapping[str, ClusterError]) -> UpPlan:
    """Return a plan of `scale` for the hosts that can be reached, which leaves the tasks of the others as they are.

    A plan that concerns tasks on the other hosts raises an error.
    """
    assert plan.observed is not None, "only a running cluster is scaled"
    existing = {task.name: task.host for task in plan.observed.topology.tasks}
    # Nothing is known of a task on a host that is unreachable, so the plan is to start it.
    unknown = [
        action
        for action in plan.actions
        if action.kind is ActionKind.START and action.task is not None and action.task.host in unreachable
    ]
    ignored = [each for each in unknown if each.task is not None and existing.get(each.task.name) == each.task.host]
    actions = tuple(action for action in plan.actions if action not in ignored)
    message = "; ".join(error.message for error in unreachable.values())
    changed = [action.task for action in actions if action.task is not None]
    if blocked := [task.short for task in changed if task.host in unreachable]:
        message += f", and the change concerns {summarize_list(blocked)} there: nothing was changed"
        raise ClusterError(message, hint="Scale jobs on the other hosts only.", exit_code=ExitCode.UNREACHABLE)
    if any(action.has_unknown_peers for action in actions):
        message += ", and its servers would have to learn new addresses: nothing was changed"
        hint = "A job that was started with `max: N` in the spec can grow to N tasks without any restart."
        raise ClusterError(message, hint=hint, exit_code=ExitCode.UNREACHABLE)
    warn(f"{message}: its tasks are unchanged; run the command again when the host is reachable")
    return replace(plan, actions=actions, unreachable=tuple(unreachable))


@contextlib.contextmanager
def _observed_hosts(
    cluster: Cluster, *, dry: bool, progress: Progress | None
) -> Generator[dict[str, HostPreflight], None, None]:
    """Observe the hosts of a cluster; release them if the context fails, or if this is a dry run."""
    hosts = observe_hosts(cluster, dry=dry, progress=progress)
    try:
        yield hosts
    except BaseException:
        abort(cluster, hosts)
        raise
    if dry:
        abort(cluster, hosts)


def _plan(
    cluster: Cluster,
    all_hosts: Cluster,
    removed_hosts: tuple[Host, ...],
    preflight: Preflight,
    allow_version_mismatch: bool,
    *,
    dry: bool,
) -> UpPlan:
    """Compute the plan from a preflight; a check that prevents the cluster from coming up raises an error."""
    results = [each for each in preflight.results if not (allow_version_mismatch and each.check == VERSIONS)]
    unexamined = [result for result in results if result.severity is Severity.NOT_CHECKED]
    is_local = all_hosts.is_local
    _print_results("", unexamined)
    if (error := to_error(results, is_local=is_local)) is not None:
        if changed := find_changed_hosts(preflight.hosts):
            raise PlanConflictError(cluster.name, f"another command changes it on {summarize_list(changed)}")
        raise error
    print_warnings(results, preflight.hosts, is_local=is_local, shown=None if dry else cluster.name)
    topology, observed = preflight.desired, preflight.observed
    actions = _plan_actions(topology, observed, preflight.hosts)
    certified = hosts_without_certificate(topology, preflight.hosts)
    if observed is not None:
        certificates = (PlannedAction(ActionKind.UPDATE, None, f"host {host} gets a certificate") for host in certified)
        actions = (*actions, *certificates)
        topology = replace(topology, kept=kept_servers(actions, observed))
    hosts = preflight.hosts
    return UpPlan(cluster, all_hosts, removed_hosts, topology, observed, actions, hosts, unexamined, certified)


def print_warnings(
    results: Sequence[CheckResult], hosts: Mapping[str, HostPreflight], *, is_local: bool, shown: str | None = None
) -> None:
    """Print the warnings and notes among the results of checks, each once for all hosts that have it.

    Notes that were shown for the cluster `shown` today are left out.
    """
    warnings = [result for result in results if result.severity is Severity.WARNING]
    _print_results("warning: ", [_with_hint(each) for each in warnings], is_local=is_local)
    # Print a note only when servers are started on the host, and once a day: users do not read a note that every
    # command repeats. `doctor` always prints it.
    notes = [each for each in results if each.severity is Severity.NOTE and hosts[each.host].observed is None]
    notes = [_with_hint(each) for each in notes]
    if shown is None or is_new_note(shown, "\n".join(f"{each.host}: {each.text}" for each in notes)):
        _print_results("note: ", notes, is_local=is_local)


def _with_hint(result: CheckResult) -> CheckResult:
    return replace(result, result=f"{result.text}. {result.hint}" if result.hint else result.text)


def _print_results(label: str, results: Sequence[CheckResult], *, is_local: bool = False) -> None:
    hosts: dict[str, list[str]] = {}
    for result in results:
        hosts.setdefault(result.text, []).append(result.host)
    for text, names in hosts.items():
        where = f"host {names[0]!r}" if len(names) == 1 else f"hosts {summarize_list(names)}"
        warn(f"{label}{'this machine' if is_local else where}: {text}")


def _skip_unreachable(removed_hosts: Sequence[Host], hosts: dict[str, HostPreflight]) -> None:
    """Skip removed hosts that cannot be reached, with a message: the cluster only needs to be stopped there."""
    for host in removed_hosts:
        if (error := hosts[host.name].reach_problem()) is not None:
            warn(
                f"{error.message}: tasks that the cluster still has there keep running until "
                "`tfcluster down` reaches the host"
            )
            del hosts[host.name]


def _registered_hosts(topology: ClusterTopology) -> tuple[Host, ...]:
    """Return the hosts that the cluster has so far, as far as this machine knows.

    An error is raised if the spec gives the name of such a host to another machine or state folder.
    """
    registered = read_registry(topology.cluster)
    if registered is not None and registered.provider is not None and topology.hosts[0].provided is None:
        place, key = registered.provider.place, registered.provider.name
        raise usage_error(
            f"cluster {topology.cluster!r} is up {place}, and this spec has no `{key}:`",
            f"`tfcluster down -c {topology.cluster}` stops it there.",
        )
    is_up = journal_path(topology.cluster).exists()
    hosts = tuple(registered.hosts.values()) if registered else (THIS_MACHINE,) * is_up
    desired = {host.name: host for host in topology.hosts}
    for host in hosts:
        new = desired.get(host.name, host)
        if not is_same_place(new, host):
            raise usage_error(
                f"cluster {topology.cluster!r} is up on host {host.name}, but this spec has a different place for that "
                f"host: {new.way}, state {new.state} (the running cluster has {host.way}, state {host.state})",
                f"Give the new one another name, or `tfcluster down -c {topology.cluster}` first.",
            )
    return hosts


def _plan_actions(
    topology: ClusterTopology, observed: ObservedState | None, hosts: Mapping[str, HostPreflight]
) -> tuple[PlannedAction, ...]:
    """Plan the actions; for a host that has an older topology than the others, plan them from that topology."""
    if observed is None:
        return plan(topology, None)
    topologies = {host: each.observed.topology for host, each in hosts.items() if each.observed is not None}
    older = {host: each for host, each in topologies.items() if each != observed.topology}
    missed = [PlannedAction(ActionKind.UPDATE, None, f"host {host} has missed a change") for host in older]
    actions = [
        *(each for each in plan(topology, observed) if each.task is None or each.task.host not in older),
        *missed,
    ]
    for host, base in older.items():
        from_base = plan(topology, replace(observed, topology=base))
        actions += [each for each in from_base if each.task is not None and each.task.host == host]
    return tuple(actions)


class PlanConflictError(ClusterError):
    """The cluster has changed since the plan was made, or while it was made, and nothing was done: plan again."""

    def __init__(self, cluster: str, change: str) -> None:
        super().__init__(
            f"cluster {cluster!r} has changed since the plan was made ({change}): nothing was done",
            hint="Run the command again: it plans from the current state.",
        )


def apply(plan: UpPlan, *, accept_any_loss: bool, show_status: Callable[[ClusterStatus], None]) -> None:
    """Apply a plan on all hosts.

    The host of the head task applies it first, then all others do in parallel. If two commands change the cluster
    concurrently, that host rejects one of them before anything has changed.

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
        for host, each in plan.hosts.items():
            if each.inspector is not None:
                each.inspector.has_cluster = host in plan.cluster.hosts
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
    head_host = topology.head().host
    if head_host not in plan.hosts:
        head_host = plan.reachable.head
    if errors := apply_on([head_host]):
        error = errors[head_host]
        is_unknown = isinstance(error, AgentDisconnectedError) or error.exit_code is ExitCode.UNREACHABLE
        if is_new and plan.observed is None and not is_unknown and not isinstance(error, PlanConflictError):
            unregister(plan.cluster.name)
        raise error
    if errors := apply_on([host for host in plan.hosts if host != head_host]):
        conflicts = [error for error in errors.values() if isinstance(error, PlanConflictError)]
        if len(conflicts) == len(errors):
            raise conflicts[0]
        completion = "`tfcluster up` again completes it, `tfcluster down` stops the whole cluster."
        raise combine_errors(plan.all_hosts, errors, after="The other hosts have applied the change.", hint=completion)


def _register(plan: UpPlan, other_hosts: Collection[Host]) -> None:
    """Write the cluster's hosts to the registry, and further hosts that may still run some of its tasks."""
    cluster = plan.cluster
    register(Cluster(cluster.name, (*cluster.hosts.values(), *other_hosts), cluster.head, cluster.provider))


def _apply_on_host(
    plan: UpPlan,
    accepted_loss: list[str] | None,
    certificate: Certificate | None,
    host: str,
    context: StreamContext,
) -> Iterator[ClusterStatus]:
    """Apply the plan on one host, and yield its status at each change while tasks are being stopped."""
    observed = plan.hosts[host].observed
    actions = [action for action in plan.actions if action.task is None or action.task.host == host]
    updates = dict.fromkeys(action.cause for action in actions if action.kind is ActionKind.UPDATE)
    client = plan.all_hosts.connect(host)
    request = ApplyRequest(
        base_revision=observed.revision if observed else None,
        topology=plan.topology,
        summary=", ".join(filter(None, [summary(actions), *updates])),
        accepted_loss=None if accepted_loss is None else tuple(accepted_loss),
        terminating=tuple(terminated_tasks(plan.actions)),
        certificate=certificate,
    )
    with contextlib.ExitStack() as stack:
        if observed is None:
            stack.enter_context(starting_host)
        stream = stack.enter_context(contextlib.closing(client.stream(request, start=observed is None)))
        try:
            yield from context.events(stream)
            conflict = stream.result().conflict
        except ClusterError as error:
            stream.close_and_reap()
            if isinstance(error, AgentDisconnectedError) and observed is None and not client.transport.is_up():
                raise AgentDisconnectedError(
                    f"the agent of {plan.topology.cluster!r} on {host} exited before it started any task",
                    hint="Type the command again.",
                ) from None
            raise
    if conflict is not None:
        raise PlanConflictError(plan.topology.cluster, conflict)


def _stop_removed_hosts(plan: UpPlan) -> list[Host]:
    """Stop everything that the cluster has on the hosts that are removed from it.

    Return the hosts on which tasks may still be running.
    """
    remaining = {host.name: host for host in plan.removed_hosts if host.name not in plan.hosts}
    removed_hosts = {host.name: host for host in plan.removed_hosts if host.name in plan.hosts}
    for name, status in stop_hosts(plan.all_hosts, removed_hosts, settings.STOP_GRACE_SECONDS):
        if isinstance(status, ClusterError):
            warn("\n".join(format_host_errors(plan.all_hosts, {name: status})))
            remaining[name] = removed_hosts[name]
    return list(remaining.values())


def is_new_note(cluster: str, text: str) -> bool:
    """Return whether a note, if there is one, was not shown for a cluster within a day; remember that it is now.

    A state home that cannot be read or written only makes the note appear more often.
    """
    if not text:
        return False
    folder = state_home() / ".notes"
    with suppress(OSError):
        for path in folder.iterdir():
            if abs(time.time() - path.stat().st_mtime) > settings.NOTE_REPEAT_SECONDS:
                path.unlink()
    with suppress(OSError, ValueError):
        if (folder / cluster).read_text() == text:
            return False
    with suppress(OSError):
        make_private_folder(folder)
        write_atomically(folder / cluster, text.encode())
    return True
