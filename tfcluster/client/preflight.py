"""The preflight of `up`: examine all hosts in parallel before anything starts, and collect their allocations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.client.rpc import AgentDisconnectedError, ResponseStream
from tfcluster.core.accounts import OtherAccounts
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import Allocation, Listening, ListenRequest, PrepareReply, PrepareRequest

if TYPE_CHECKING:
    from tfcluster.transport.dry_run_probe import Probe
    from tfcluster.transport.ssh import HostReport


#: Called with the number of hosts examined so far and the number of all hosts.
Progress = Callable[[int, int], None]


def no_progress(done: int, count: int) -> None:
    """Ignore the progress of a preflight."""


@dataclass
class HostPreflight:
    """The preflight result of a host.

    Attributes:
        contact: The report of the first contact; None for this machine.
        tensorflow: The version of the host's TensorFlow; None if unknown.
        choices: The ports and GPUs that the host's agent allocated.
        found: The observed state of the cluster on the host; None if the cluster is not up there.
        problems: Everything that prevents the host from starting its tasks.
        accounts: Other accounts on the host that can connect to its servers; None if there are none.
        held: A stream that keeps the agent alive and its ports accepting connections while it is open; None if the
            cluster is on this machine only, where the agent waits by itself.
        is_whole: Whether the host's ports, GPUs, addresses and folders were examined.
        unexamined: What a dry run could not examine, and why.
        probe: The process on the host that made the dry run; it answers further requests until it is closed.
    """

    contact: HostReport | None = None
    tensorflow: str | None = None
    choices: Allocation = field(default_factory=lambda: Allocation({}, {}))
    found: ObservedState | None = None
    problems: list[ClusterError] = field(default_factory=list)
    accounts: OtherAccounts | None = None
    held: ResponseStream[Listening, NoReturn] | None = None
    is_whole: bool = True
    unexamined: list[str] = field(default_factory=list)
    probe: Probe | None = None

    @property
    def clock_offset(self) -> float:
        """Return the seconds by which the host's clock is ahead of this machine's (negative if it is behind).

        The offset is 0 if it is not larger than the error of its measurement.
        """
        if self.contact is None or abs(self.contact.clock_offset) <= self.contact.clock_error:
            return 0.0
        return self.contact.clock_offset


def examine(cluster: Cluster, wanted: ClusterTopology, *, progress: Progress) -> dict[str, HostPreflight]:
    """Examine every host of a cluster in parallel and prepare it for its tasks.

    This runs the setup commands that the spec lists for a host, once, and starts an agent on each host that has none.
    It starts no task. The dry run, `probe_hosts`, changes nothing.

    Args:
        cluster: The cluster whose hosts are examined.
        wanted: The topology of the spec.
        progress: Called with the number of hosts examined so far, if there are several.

    Returns:
        The preflight result of each host, in the order of the cluster's hosts.
    """
    if cluster.is_here:
        return {host: _examine_alone(cluster, host, wanted) for host in cluster.hosts}
    count = len(cluster.hosts)
    progress(0, count)
    # No timeout here: the setup commands of a host may take any time, and each transport has timeouts of its own.
    ask = partial(_examine_host, cluster, wanted)
    told = map_hosts(cluster.hosts, ask, None, lambda done: progress(done, count))
    right, wrong = split(told)
    return {host: right[host] if host in right else HostPreflight(problems=[wrong[host]]) for host in cluster.hosts}


def _examine_alone(cluster: Cluster, host: str, wanted: ClusterTopology) -> HostPreflight:
    request = PrepareRequest(wanted, dry=False)
    connection = cluster.connect(host)
    response = connection.stream(request, start=True)
    try:
        try:
            reply = response.result()
        except AgentDisconnectedError:  # the agent shut down or died just as the request arrived: retry with the next
            response = connection.stream(request, start=True)
            reply = response.result()
    except BaseException:
        response.close_and_reap()
        raise
    if reply.problems:
        response.close_and_reap()
    return examined_of(reply)


def _examine_host(cluster: Cluster, wanted: ClusterTopology, host: str) -> HostPreflight:
    """Examine a host of several; its agent stays alive for as long as a command is connected to it."""
    contact = cluster.contact(host)
    if contact is not None and contact.problems:
        return HostPreflight(contact, contact.tensorflow, problems=list(contact.problems))
    connection = cluster.connect(host)
    try:
        first = connection.stream(ListenRequest(), start=True)
        with contextlib.closing(first):
            next(first)
            examined = examined_of(connection.call(PrepareRequest(wanted, dry=True)), contact)
            examined.held = connection.stream(ListenRequest())
            next(examined.held)
    except ClusterError as error:
        return HostPreflight(contact, problems=[error])
    return examined


def examined_of(reply: PrepareReply, contact: HostReport | None = None) -> HostPreflight:
    """Make the result of an agent's reply.

    Args:
        reply: The reply.
        contact: The report of the first contact; None for this machine.
    """
    return HostPreflight(
        contact,
        tensorflow=reply.tensorflow,
        choices=reply.choices,
        found=reply.found,
        problems=list(reply.problems),
        accounts=reply.accounts,
    )


def let_go(examined: Mapping[str, HostPreflight]) -> None:
    """Close the streams to all hosts; agents that were started for the preflight and got no cluster since exit."""
    held = {host: each.held for host, each in examined.items() if each.held is not None}
    map_hosts(held, lambda host: held[host].close_and_reap(), settings.PREFLIGHT_EXIT_SECONDS)


def abort(cluster: Cluster, examined: Mapping[str, HostPreflight]) -> None:
    """Abort after a preflight: close the streams, and the connections to hosts on which the cluster is not up."""
    let_go(examined)
    without = [host for host, each in examined.items() if each.found is None]
    map_hosts(without, lambda host: cluster.reach(host).disconnect(), settings.PREFLIGHT_EXIT_SECONDS)
