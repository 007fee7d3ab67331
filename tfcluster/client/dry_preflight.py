"""The examination of `up --dry-run` and `doctor`: it changes nothing on any host, and runs nothing of the spec there.

All that is executed on a host is tfcluster's own code, in one process under the Python that the spec names, isolated
from its environment. Where the cluster is up, its agent there is asked instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.client.preflight import HostPreflight, Progress, examined_of
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.transport.base import not_running
from tfcluster.transport.unexamined import of_environment

# For the end of processes that examined hosts, hosts away among them.
_END_SECONDS = 10.0


def probe_hosts(
    cluster: Cluster, wanted: ClusterTopology, *, progress: Progress, listen: bool = False
) -> dict[str, HostPreflight]:
    """Examine every host of a cluster, all at once, and change nothing; to be ended by `release`.

    Args:
        cluster: The cluster; its hosts are examined.
        wanted: The topology of the spec.
        progress: Told how many of several hosts have been examined.
        listen: Let connections come to the tasks' ports until the end.
    """
    count = len(cluster.hosts)
    if not cluster.is_here:
        progress(0, count)
    told = map_hosts(
        cluster.hosts,
        partial(_probe_host, cluster, wanted, listen),
        None,  # every question to a host is bounded in itself
        None if cluster.is_here else lambda done: progress(done, count),
    )
    right, wrong = split(told)
    return {host: right[host] if host in right else HostPreflight(problems=[wrong[host]]) for host in cluster.hosts}


def _probe_host(cluster: Cluster, wanted: ClusterTopology, listen: bool, host: str) -> HostPreflight:
    contact, probe = cluster.probe(host)
    problems = list(contact.problems) if contact is not None else []
    notes = list(contact.unexamined) if contact is not None else []
    version = contact.tensorflow if contact is not None else None
    if probe is None:
        return HostPreflight(contact, version, problems=problems, is_whole=False, unexamined=notes)
    try:
        reply = probe.prepare(wanted, listen=listen)
    except BaseException as error:
        probe.close()
        if not isinstance(error, ClusterError):
            raise
        return HostPreflight(contact, version, problems=[*problems, error], unexamined=notes)
    examined = examined_of(reply, contact)
    examined.probe = probe
    variables = of_environment(cluster.hosts[host]) if contact is not None else []
    if examined.found is not None:  # the agent there has examined all, and has the variables
        examined.unexamined = [note for note in notes if note not in variables]
        return examined
    installation = list(map(ClusterError.from_json, reply["installation"]))
    if variables:  # they may lead to what a library lacks
        notes += [f"{problem.message}; `env:` may change that: not examined" for problem in installation]
        installation = []
    examined.problems = [*problems, *examined.problems, *installation]
    examined.unexamined = notes
    return examined


def topology_of(cluster: Cluster, host: str) -> ClusterTopology:
    """Ask a host for the topology of the cluster that is up, and start no agent if that has died.

    Raises:
        ClusterError: It cannot be told.
    """
    contact, probe = cluster.probe(host)
    if probe is None:
        problems = contact.problems if contact is not None else ()
        raise problems[0] if problems else not_running(cluster.name)
    with contextlib.closing(probe):
        return probe.topology()


def release(examined: Mapping[str, HostPreflight]) -> None:
    """End the processes that examined the hosts; returns when they have ended, where hosts can be reached."""
    probes = {host: each.probe for host, each in examined.items() if each.probe is not None}
    map_hosts(probes, lambda host: probes[host].close(), _END_SECONDS)
