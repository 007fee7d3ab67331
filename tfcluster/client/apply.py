"""Apply the plan of `up` or `scale` on all hosts of a cluster (the second half of reconcile)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial

from tfcluster import settings
from tfcluster.client import registry
from tfcluster.client.cluster import Cluster
from tfcluster.client.down import stop_on
from tfcluster.client.output import tell
from tfcluster.client.parallel import StreamContext, merge_streams
from tfcluster.client.preflight import let_go
from tfcluster.client.rpc import AgentDisconnectedError
from tfcluster.client.snapshot import lines_of
from tfcluster.client.up import UpPlan
from tfcluster.core.aggregate_status import HostUnavailable, whole
from tfcluster.core.hosts import Host
from tfcluster.core.plan import data_losses, terminated_tasks
from tfcluster.core.status import ClusterStatus
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import ApplyRequest


def apply(prepared: UpPlan, *, whatever_is_lost: bool) -> Iterator[ClusterStatus]:
    """Carry out a plan on all hosts.

    When the iterator ends, every task that has to start is starting; it need not be ready yet.

    Args:
        prepared: The plan.
        whatever_is_lost: Accept every data loss, including one that the plan does not list, such as that of a run
            that was submitted since.

    Yields:
        The cluster's status at each change while tasks are being stopped.

    Raises:
        ClusterError: An agent failed to apply the plan, or its cluster is not the one that the plan was made from.
    """
    lost = None if whatever_is_lost else data_losses(prepared.operations)
    if prepared.cluster.is_here and prepared.leaving is None:
        if prepared.operations:
            head = prepared.cluster.head
            yield from _apply_on(prepared, prepared.topology, lost, head, StreamContext(head))
        return
    yield from _apply_everywhere(prepared, lost)


def _apply_everywhere(prepared: UpPlan, lost: list[str] | None) -> Iterator[ClusterStatus]:
    """Apply the plan on one deciding host first, then on all others.

    If two commands change the cluster concurrently, the deciding host rejects one of them before anything has changed.

    Args:
        prepared: The plan.
        lost: The data losses that the user accepted; None accepts all.

    Yields:
        The aggregate status of all hosts at each change.
    """
    # Write the registry before anything starts: if this command dies, the next one still knows the hosts.
    noted = registry.read(prepared.cluster.name) is not None
    leaving = tuple(prepared.leaving.hosts.values()) if prepared.leaving else ()
    _note(prepared, leaving)
    topology = prepared.base or prepared.topology
    try:
        if prepared.operations:
            first = _decisive_host(prepared)
            told: dict[str, ClusterStatus | HostUnavailable] = {}
            deciding = _apply_on(prepared, prepared.topology, lost, first, StreamContext(first))
            try:
                while True:
                    told[first] = next(deciding)
                    yield whole(topology, told)
            except StopIteration as end:
                decided: ClusterTopology = end.value  # that of a concurrent command if it came first, with its ports
            except ClusterError as error:
                is_certain = (
                    not isinstance(error, AgentDisconnectedError) and error.exit_code is not ExitCode.UNREACHABLE
                )
                if is_certain and prepared.base is None and not noted:
                    registry.remove(prepared.cluster.name)
                raise
            others = [host for host in prepared.examined if host != first]
            streams = {host: partial(_apply_on, prepared, decided, lost, host) for host in others}
            for _ in _carry_on(told, streams):
                yield whole(topology, told)
            # A `status` that ran before anything was up may have removed the registry entry: write it again.
            _note(prepared, leaving)
        if prepared.leaving is not None:
            _note(prepared, tuple(prepared.leaving.hosts[host] for host in _leave(prepared, prepared.leaving)))
    finally:
        let_go(prepared.examined)


def _decisive_host(prepared: UpPlan) -> str:
    decisive = (prepared.base or prepared.topology).head().host
    return decisive if decisive in prepared.examined else prepared.cluster.head


def _note(prepared: UpPlan, besides: tuple[Host, ...]) -> None:
    """Write the cluster's hosts to the registry, and further hosts that may still run some of its tasks."""
    cluster = prepared.cluster
    if cluster.is_here and not besides:
        registry.remove(cluster.name)
    else:
        registry.write(Cluster(cluster.name, (*cluster.hosts.values(), *besides), cluster.head))


def _carry_on(
    told: dict[str, ClusterStatus | HostUnavailable],
    streams: Mapping[str, Callable[[StreamContext], Iterator[ClusterStatus]]],
) -> Iterator[None]:
    """Read the statuses of several hosts into `told`.

    Args:
        told: The latest status of each host; updated in place.
        streams: The stream of statuses to read, by host.

    Yields:
        None at each change of `told`.

    Raises:
        ClusterError: Some hosts failed to apply the plan; all others have applied it by then.
    """
    if not streams:
        return
    wrong: dict[str, ClusterError] = {}
    with contextlib.closing(merge_streams(streams)) as statuses:
        for host, status in statuses:
            if isinstance(status, ClusterError):
                wrong[host] = status
            else:
                told[host] = status
                yield
    if wrong:
        hints = dict.fromkeys(error.hint for error in wrong.values() if error.hint)
        raise ClusterError(
            "\n".join([*lines_of(wrong), "the other hosts are changed, and go on"]),
            hint=" ".join([*hints, "`tfcluster up` again does what is left, `tfcluster down` stops all of it."]),
            exit_code=max(error.exit_code for error in wrong.values()),
        )


def _apply_on(
    prepared: UpPlan, topology: ClusterTopology, lost: list[str] | None, host: str, strand: StreamContext
) -> Generator[ClusterStatus, None, ClusterTopology]:
    """Apply the plan on one host.

    Yields:
        The host's status at each change while tasks are being stopped.

    Returns:
        The topology that the host has afterwards.
    """
    found = prepared.examined[host].found
    connection = prepared.everywhere.connect(host)
    request = ApplyRequest(
        wanted=prepared.wanted,
        base=found.topology if found else None,
        topology=topology,
        lost=None if lost is None else tuple(lost),
        ends=tuple(terminated_tasks(prepared.operations)),
    )
    response = connection.stream(request, start=found is None)
    with contextlib.closing(response):
        try:
            yield from strand.events(response)
            return response.result().topology
        except ClusterError as error:
            response.close_and_reap()
            if isinstance(error, AgentDisconnectedError) and found is None and not connection.transport.is_up():
                raise AgentDisconnectedError(
                    f"the agent of {prepared.wanted.cluster!r} on {host} died before it had started a task: none runs",
                    hint="Type the command again.",
                ) from None
            raise


def _leave(prepared: UpPlan, leaving: Cluster) -> list[str]:
    """Stop everything that the cluster has on the hosts that are removed from it.

    Returns:
        The hosts on which tasks may still be running.
    """
    left = [host for host in leaving.hosts if host not in prepared.examined]
    for host, status in stop_on(
        leaving, [host for host in leaving.hosts if host not in left], settings.STOP_GRACE_SECONDS
    ):
        if isinstance(status, ClusterError):
            tell("\n".join(lines_of({host: status})))
            left.append(host)
    return left
