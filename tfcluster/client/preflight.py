"""Examining all hosts of a cluster before anything starts, and putting together what each found and chose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.client.rpc import AgentDisconnectedError, ResponseStream
from tfcluster.core.accounts import OtherAccounts
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Method

if TYPE_CHECKING:
    from tfcluster.transport.dry_run_probe import Probe
    from tfcluster.transport.ssh import HostReport

# How long the end of the agents that were started for an examination is waited for, hosts away among them.
_END_SECONDS = 10.0

#: Called with the number of hosts that have been examined, and of those that are to be.
Progress = Callable[[int, int], None]


def no_progress(done: int, count: int) -> None:
    """Tell nobody how far an examination is."""


@dataclass
class HostPreflight:
    """What there is on a host.

    Attributes:
        contact: What a first contact found; None for this machine.
        tensorflow: The version of its TensorFlow; None where that is not known.
        choices: The ports and GPUs that its agent chose, as `ClusterTopology.with_choices` takes them.
        found: The part of the cluster that is up there.
        problems: All that keeps it from starting its tasks.
        accounts: Other accounts there that can connect to its servers; None where there are none.
        held: While this is open, the agent there lives and its ports let connections come; None on this machine
            alone, where an agent waits by itself.
        is_whole: Whether its ports, GPUs, addresses and folders were looked at.
        unexamined: What an examination that changes nothing could not look at, and why.
        probe: The process there that made such an examination, to ask more of until it is closed.
    """

    contact: HostReport | None = None
    tensorflow: str | None = None
    choices: dict[str, Any] = field(default_factory=lambda: {"ports": {}, "gpus": {}})
    found: ObservedState | None = None
    problems: list[ClusterError] = field(default_factory=list)
    accounts: OtherAccounts | None = None
    held: ResponseStream | None = None
    is_whole: bool = True
    unexamined: list[str] = field(default_factory=list)
    probe: Probe | None = None

    @property
    def clock_offset(self) -> float:
        """So many seconds its clock is ahead of this machine's, or behind if negative; 0 where that is not certain."""
        if self.contact is None or abs(self.contact.clock_offset) <= self.contact.clock_error:
            return 0.0
        return self.contact.clock_offset


def examine(cluster: Cluster, wanted: ClusterTopology, *, progress: Progress) -> dict[str, HostPreflight]:
    """Examine every host of a cluster, all at once, and prepare it for its tasks.

    The commands that the spec wants to have run once on a host are run; agents are started where there are none, and
    no task. `probe_hosts` changes nothing.

    Args:
        cluster: The cluster; its hosts are examined.
        wanted: The topology of the spec.
        progress: Told how far this is.
    """
    if cluster.is_here:
        return {host: _examine_alone(cluster, host, wanted) for host in cluster.hosts}
    count = len(cluster.hosts)
    progress(0, count)
    # Not bounded here: a host's setup takes the time that it takes, and every way to a host is bounded in itself.
    ask = partial(_examine_host, cluster, wanted)
    told = map_hosts(cluster.hosts, ask, None, lambda done: progress(done, count))
    right, wrong = split(told)
    return {host: right[host] if host in right else HostPreflight(problems=[wrong[host]]) for host in cluster.hosts}


def _examine_alone(cluster: Cluster, host: str, wanted: ClusterTopology) -> HostPreflight:
    arguments = {"topology": wanted.to_json(), "dry": False}
    connection = cluster.connect(host)
    answer = connection.stream(Method.PREPARE, start=True, **arguments)
    try:
        try:
            reply = answer.finish()
        except AgentDisconnectedError:  # it went down, or died, just as we came: the next one answers
            answer = connection.stream(Method.PREPARE, start=True, **arguments)
            reply = answer.finish()
    except BaseException:
        answer.leave()
        raise
    if reply["problems"]:
        answer.leave()
    return examined_of(reply)


def _examine_host(cluster: Cluster, wanted: ClusterTopology, host: str) -> HostPreflight:
    """Examine a host of several, whose agent lives on for as long as somebody is connected."""
    contact = cluster.contact(host)
    if contact is not None and contact.problems:
        return HostPreflight(contact, contact.tensorflow, problems=list(contact.problems))
    connection = cluster.connect(host)
    try:
        first = connection.stream(Method.LISTEN, start=True)
        with contextlib.closing(first):
            next(first)
            examined = examined_of(connection.call(Method.PREPARE, topology=wanted.to_json(), dry=True), contact)
            examined.held = connection.stream(Method.LISTEN)
            next(examined.held)
    except ClusterError as error:
        return HostPreflight(contact, problems=[error])
    return examined


def examined_of(reply: Mapping[str, Any], contact: HostReport | None = None) -> HostPreflight:
    """Read what an agent replies to Method.PREPARE."""
    accounts = reply.get("accounts")  # an agent that has been up since an earlier version does not say
    return HostPreflight(
        contact,
        tensorflow=reply["tensorflow"],
        choices=reply["choices"],
        found=ObservedState.from_json(reply["found"]) if reply["found"] else None,
        problems=[ClusterError.from_json(problem) for problem in reply["problems"]],
        accounts=OtherAccounts.from_json(accounts) if accounts else None,
    )


def let_go(examined: Mapping[str, HostPreflight]) -> None:
    """Hang up everywhere: agents that were started for the examination, and have got no cluster since, end."""
    held = {host: each.held for host, each in examined.items() if each.held is not None}
    map_hosts(held, lambda host: held[host].leave(), _END_SECONDS)


def abort(cluster: Cluster, examined: Mapping[str, HostPreflight]) -> None:
    """Hang up everywhere, and keep no connection to hosts on which there is nothing of the cluster."""
    let_go(examined)
    without = [host for host, each in examined.items() if each.found is None]
    map_hosts(without, lambda host: cluster.reach(host).disconnect(), _END_SECONDS)
