"""Query all hosts of a cluster, each with a timeout: the aggregate status, and the devices of the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfcluster import settings
from tfcluster.client import registry
from tfcluster.client.cluster import Cluster
from tfcluster.client.parallel import map_hosts, partition
from tfcluster.core.devices import Device
from tfcluster.core.status import ClusterStatus, HostUnavailable, aggregate_status
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST
from tfcluster.protocol.api.cluster import DevicesReply, DevicesRequest, StatusRequest, TopologyRequest
from tfcluster.transport.base import not_running


@dataclass(frozen=True)
class ClusterSnapshot:
    """The state of a cluster at one moment.

    Attributes:
        topology: The latest topology that any of its hosts has.
        status: The aggregate status.
        errors: The error of each host that could not report its status, by host.
        statuses: The status that each of the other hosts reported, by host.
    """

    topology: ClusterTopology
    status: ClusterStatus
    errors: dict[str, ClusterError]
    statuses: dict[str, ClusterStatus]


class NoStatusError(ClusterError):
    """No host of a cluster could report its status.

    Attributes:
        errors: The error of each host, by host.
    """

    def __init__(self, cluster: Cluster, errors: Mapping[str, ClusterError]) -> None:
        # The only error of a cluster on this machine needs no host name.
        error = next(iter(errors.values())) if cluster.is_here else unreachable(cluster.name, errors)
        super().__init__(error.message, hint=error.hint, exit_code=error.exit_code)
        self.errors = errors


def take_snapshot(cluster: Cluster) -> ClusterSnapshot:
    """Take a snapshot: query all hosts of a cluster in parallel.

    Raises:
        NoStatusError: None of its hosts can report its status.
        ClusterError: The cluster is running on none of its hosts; then it is removed from the registry.
    """

    def query(host: str) -> tuple[ClusterTopology, ClusterStatus]:
        client = cluster.connect(host)
        status = client.call(StatusRequest())
        return client.call(TopologyRequest(settled=False)), status

    # A hanging agent on this machine is reported by its own timeout, with its pid.
    timeout = None if cluster.is_here else settings.STATUS_TIMEOUT_SECONDS
    reports, failures = partition(map_hosts(cluster.hosts, query, timeout))
    errors = {host: error for host, error in failures.items() if error.exit_code is not ExitCode.NOT_RUNNING}
    if not reports and not errors:
        registry.remove(cluster.name)
        raise failures[LOCAL_HOST] if cluster.is_here else not_running(cluster.name)
    if not reports:
        raise NoStatusError(cluster, errors)
    topology = latest_topology([topology for topology, _ in reports.values()])
    # Some of the topology's hosts may no longer be in the registry, because they are certainly down.
    hosts = dict.fromkeys([*(host.name for host in topology.hosts), *cluster.hosts])
    statuses: dict[str, ClusterStatus | HostUnavailable] = {
        host: reports[host][1] if host in reports else "unreachable" if host in errors else "down" for host in hosts
    }
    return ClusterSnapshot(
        topology, aggregate_status(topology, statuses), errors, {host: status for host, (_, status) in reports.items()}
    )


def latest_topology(topologies: list[ClusterTopology]) -> ClusterTopology:
    """Return the latest of the topologies that the hosts have; they differ if a change was not applied everywhere."""
    return max(topologies, key=lambda topology: topology.generation)


def unreachable(cluster: str, errors: Mapping[str, ClusterError]) -> ClusterError:
    """Build the error for hosts of a cluster that cannot be reached.

    Args:
        cluster: The cluster's name.
        errors: The error of each host, by host.
    """
    hints = [error.hint for error in errors.values()]
    return ClusterError(
        "\n".join(lines_of(errors)),
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

    def query(host: str) -> DevicesReply:
        return cluster.connect(host).call(DevicesRequest())

    replies, errors = partition(map_hosts(cluster.hosts, query, settings.DEVICES_TIMEOUT_SECONDS))
    errors = {host: error for host, error in errors.items() if error.exit_code is not ExitCode.NOT_RUNNING}
    if not replies:
        raise next(iter([*errors.values(), not_running(cluster.name)]))
    devices = [(host, device) for host, reply in replies.items() for device in reply.devices]
    silent = [problem for reply in replies.values() for problem in reply.silent]
    if errors:
        error = unreachable(cluster.name, errors)
        return devices, ClusterError("\n".join([error.message, *silent]), hint=error.hint, exit_code=error.exit_code)
    if silent:
        return devices, ClusterError(
            "\n".join(silent),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` the latest output of one.",
            exit_code=ExitCode.UNHEALTHY,
        )
    return devices, None
