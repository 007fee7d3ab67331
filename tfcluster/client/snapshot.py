"""Query all hosts of a cluster, each with a timeout: the aggregate status, and the devices of the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfcluster import settings
from tfcluster.client import registry
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, split
from tfcluster.core.aggregate_status import HostUnavailable, whole
from tfcluster.core.devices import Device
from tfcluster.core.status import ClusterStatus
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import DevicesRequest, TopologyRequest
from tfcluster.protocol.api.tasks import StatusRequest
from tfcluster.transport.base import not_running


@dataclass(frozen=True)
class ClusterSnapshot:
    """The state of a cluster at one moment.

    Attributes:
        topology: The latest topology that any of its hosts has.
        status: The aggregate status.
        away: The error of each host that could not report its status, by host.
        told: The status that each of the other hosts reported, by host.
    """

    topology: ClusterTopology
    status: ClusterStatus
    away: dict[str, ClusterError]
    told: dict[str, ClusterStatus]


class NoStatusError(ClusterError):
    """No host of a cluster could report its status.

    Attributes:
        away: The error of each host, by host.
    """

    def __init__(self, cluster: str, away: Mapping[str, ClusterError]) -> None:
        error = unreachable(cluster, away)
        super().__init__(error.message, hint=error.hint, exit_code=error.exit_code)
        self.away = away


def look(cluster: Cluster) -> ClusterSnapshot:
    """Take a snapshot: query all hosts of a cluster in parallel.

    Raises:
        ClusterError: The cluster is running on none of its hosts (then it is removed from the registry), or none of
            them can be reached.
    """

    def ask(host: str) -> tuple[ClusterTopology, ClusterStatus]:
        connection = cluster.connect(host)
        status = connection.call(StatusRequest())
        return connection.call(TopologyRequest(settled=False)), status

    told, wrong = split(map_hosts(cluster.hosts, ask, settings.STATUS_TIMEOUT_SECONDS))
    away = {host: error for host, error in wrong.items() if error.exit_code is not ExitCode.NOT_RUNNING}
    if not told and not away:
        registry.remove(cluster.name)
        raise not_running(cluster.name)
    if not told:
        raise NoStatusError(cluster.name, away)
    topology = latest_topology([topology for topology, _ in told.values()])
    # Some of the topology's hosts may no longer be in the registry, because they are certainly down.
    hosts = dict.fromkeys([*(host.name for host in topology.hosts), *cluster.hosts])
    answers: dict[str, ClusterStatus | HostUnavailable] = {
        host: told[host][1] if host in told else "unreachable" if host in away else "down" for host in hosts
    }
    return ClusterSnapshot(
        topology, whole(topology, answers), away, {host: status for host, (_, status) in told.items()}
    )


def latest_topology(topologies: list[ClusterTopology]) -> ClusterTopology:
    """Return the latest of the topologies that the hosts have; they differ if a change was not applied everywhere."""
    return max(topologies, key=lambda topology: topology.generation)


def unreachable(cluster: str, away: Mapping[str, ClusterError], more: str = "") -> ClusterError:
    """Build the error for hosts of a cluster that cannot be reached.

    Args:
        cluster: The cluster's name.
        away: The error of each host, by host.
        more: A hint that precedes those of the errors.
    """
    hints = [more, *(error.hint for error in away.values())]
    return ClusterError(
        "\n".join(lines_of(away)),
        hint=" ".join(dict.fromkeys(filter(None, hints))) or f"`tfcluster status -c {cluster}` tries again.",
        exit_code=ExitCode.UNREACHABLE,
    )


def lines_of(errors: Mapping[str, ClusterError]) -> list[str]:
    """Return the lines of the errors' messages, each with its host's name."""
    return [line for host, error in errors.items() for line in with_host(host, error)]


def with_host(host: str, error: ClusterError) -> list[str]:
    """Return the lines of an error's message, each prefixed with the host's name unless it already has it."""
    named = f"host {host!r}"
    return [line if line.startswith(named) else f"{named}: {line}" for line in error.message.splitlines()]


# An agent queries all its tasks at the same time, each with a timeout of some seconds.
_ANSWER_SECONDS = 8.0


def list_devices(cluster: Cluster) -> tuple[list[tuple[str, Device]], ClusterError | None]:
    """List the devices of all tasks.

    Args:
        cluster: The cluster.

    Returns:
        The devices, each with its host, and an error that names the tasks and hosts whose devices are missing; None if
        all answered.

    Raises:
        ClusterError: The cluster is not running, or none of its hosts can be reached.
    """
    told, wrong = split(
        map_hosts(cluster.hosts, lambda host: cluster.connect(host).call(DevicesRequest()), _ANSWER_SECONDS)
    )
    away = {host: error for host, error in wrong.items() if error.exit_code is not ExitCode.NOT_RUNNING}
    if not told:
        raise next(iter([*away.values(), not_running(cluster.name)]))
    devices = [(host, device) for host, reply in told.items() for device in reply.devices]
    silent = [problem for reply in told.values() for problem in reply.silent]
    if away:
        error = unreachable(cluster.name, away)
        return devices, ClusterError("\n".join([error.message, *silent]), hint=error.hint, exit_code=error.exit_code)
    if silent:
        return devices, ClusterError(
            "\n".join(silent),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` what one said last.",
            exit_code=ExitCode.UNHEALTHY,
        )
    return devices, None
