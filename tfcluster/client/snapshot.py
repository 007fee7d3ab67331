"""A look at a cluster on several hosts: what each tells within bounded time, put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfcluster.client import registry
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.core.aggregate_status import HostUnavailable, whole
from tfcluster.core.status import ClusterStatus
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Method
from tfcluster.transport.base import not_running

#: A host that has not told how it is by then counts as one that cannot be reached.
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class ClusterSnapshot:
    """A cluster at a moment.

    Attributes:
        topology: What it is, as the newest of its hosts has it.
        status: How it is.
        away: Why a host cannot be reached, by host.
        told: What each of the others has told.
    """

    topology: ClusterTopology
    status: ClusterStatus
    away: dict[str, ClusterError]
    told: dict[str, ClusterStatus]


class NoStatusError(ClusterError):
    """No host of a cluster tells how it is.

    Attributes:
        away: Why, by host.
    """

    def __init__(self, cluster: str, away: Mapping[str, ClusterError]) -> None:
        error = unreachable(cluster, away)
        super().__init__(error.message, hint=error.hint, exit_code=error.exit_code)
        self.away = away


def look(cluster: Cluster) -> ClusterSnapshot:
    """Ask all hosts of a cluster how it is.

    Raises:
        ClusterError: It runs on none of them, and then is forgotten; or none can be reached.
    """

    def ask(host: str) -> tuple[ClusterTopology, ClusterStatus]:
        connection = cluster.connect(host)
        status = ClusterStatus.from_json(connection.call(Method.STATUS))
        return ClusterTopology.from_json(connection.call(Method.TOPOLOGY, settled=False)), status

    told, wrong = split(map_hosts(cluster.hosts, ask, LOOK_SECONDS))
    away = {host: error for host, error in wrong.items() if error.exit_code is not ExitCode.NOT_RUNNING}
    if not told and not away:
        registry.remove(cluster.name)
        raise not_running(cluster.name)
    if not told:
        raise NoStatusError(cluster.name, away)
    topology = latest_topology([topology for topology, _ in told.values()])
    # Some of the topology's hosts may be forgotten, as they are down for certain.
    hosts = dict.fromkeys([*(host.name for host in topology.hosts), *cluster.hosts])
    answers: dict[str, ClusterStatus | HostUnavailable] = {
        host: told[host][1] if host in told else "unreachable" if host in away else "down" for host in hosts
    }
    return ClusterSnapshot(
        topology, whole(topology, answers), away, {host: status for host, (_, status) in told.items()}
    )


def latest_topology(topologies: list[ClusterTopology]) -> ClusterTopology:
    """Of the topologies that hosts have, which differ where a change did not come to its end, the latest."""
    return max(topologies, key=lambda topology: topology.generation)


def unreachable(cluster: str, away: Mapping[str, ClusterError], more: str = "") -> ClusterError:
    """That some hosts of a cluster cannot be reached, each with why.

    Args:
        cluster: The cluster's name.
        away: Why, by host.
        more: What to type next besides.
    """
    hints = [more, *(error.hint for error in away.values())]
    return ClusterError(
        "\n".join(lines_of(away)),
        hint=" ".join(dict.fromkeys(filter(None, hints))) or f"`tfcluster status -c {cluster}` tries again.",
        exit_code=ExitCode.UNREACHABLE,
    )


def lines_of(errors: Mapping[str, ClusterError]) -> list[str]:
    """What went wrong on which host, in lines."""
    return [line for host, error in errors.items() for line in with_host(host, error)]


def with_host(host: str, error: ClusterError) -> list[str]:
    """What went wrong on a host, each line with its name; many errors have it already."""
    named = f"host {host!r}"
    return [line if line.startswith(named) else f"{named}: {line}" for line in error.message.splitlines()]
