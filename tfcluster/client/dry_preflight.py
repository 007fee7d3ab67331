"""The dry-run preflight of `up --dry-run` and `doctor`: changes nothing on any host and runs no command of the spec.

On a host it executes only tfcluster's own code, in one probe process under the Python that the spec names, isolated
from the environment variables and folders that could make that Python execute other code. On a host where the cluster
is up, the agent is asked instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.client.preflight import HostPreflight, Progress, examined_of
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import PrepareReply
from tfcluster.protocol.serialization import decode
from tfcluster.transport.base import not_running
from tfcluster.transport.dry_run_probe import environment_notes


def probe_hosts(
    cluster: Cluster, wanted: ClusterTopology, *, progress: Progress, listen: bool = False
) -> dict[str, HostPreflight]:
    """Examine every host of a cluster in parallel without changing anything; call `release` on the result.

    Args:
        cluster: The cluster whose hosts are examined.
        wanted: The topology of the spec.
        progress: Called with the number of hosts examined so far, if there are several.
        listen: Accept connections on the tasks' ports until `release`.

    Returns:
        The preflight result of each host, in the order of the cluster's hosts.
    """
    count = len(cluster.hosts)
    if not cluster.is_here:
        progress(0, count)
    told = map_hosts(
        cluster.hosts,
        partial(_probe_host, cluster, wanted, listen),
        None,  # every request to a host has a timeout of its own
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
    fields = {name: value for name, value in reply.items() if name not in ("installation", "listens")}
    examined = examined_of(decode(PrepareReply, fields), contact)
    examined.probe = probe
    variables = environment_notes(cluster.hosts[host]) if contact is not None else []
    if examined.found is not None:  # the running agent has checked everything, with the spec's environment variables
        examined.unexamined = [note for note in notes if note not in variables]
        return examined
    installation = list(map(ClusterError.from_json, reply["installation"]))
    if variables:  # the spec's environment variables may provide what a library is missing (as LD_LIBRARY_PATH does)
        notes += [f"{problem.message}; `env:` may change that: not examined" for problem in installation]
        installation = []
    examined.problems = [*problems, *examined.problems, *installation]
    examined.unexamined = notes
    return examined


def topology_of(cluster: Cluster, host: str) -> ClusterTopology:
    """Return the topology of the running cluster as one host has it, without starting an agent if that has died.

    Raises:
        ClusterError: The host cannot provide it.
    """
    contact, probe = cluster.probe(host)
    if probe is None:
        problems = contact.problems if contact is not None else ()
        raise problems[0] if problems else not_running(cluster.name)
    with contextlib.closing(probe):
        return probe.topology()


def release(examined: Mapping[str, HostPreflight]) -> None:
    """End the probe processes and wait until those on reachable hosts have exited."""
    probes = {host: each.probe for host, each in examined.items() if each.probe is not None}
    map_hosts(probes, lambda host: probes[host].close(), settings.PREFLIGHT_EXIT_SECONDS)
