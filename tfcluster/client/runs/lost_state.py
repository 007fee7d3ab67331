"""What a command that runs a program says of a host that has come back without its state, such as a replaced pod."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfcluster.core.states import DESIRED_RUNNING, HostState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport.errors import UnrecordedProcessesError

if TYPE_CHECKING:
    from tfcluster.client.cluster import Cluster


@contextlib.contextmanager
def naming_empty_head(cluster: Cluster) -> Iterator[None]:
    """Say what `status` says if the body fails because the cluster is not running on the head task's host alone."""
    try:
        yield
    except ClusterError as error:
        is_not_running = error.exit_code is ExitCode.NOT_RUNNING and not isinstance(error, UnrecordedProcessesError)
        if is_not_running and len(cluster.hosts) > 1 and _runs_elsewhere(cluster):
            raise _head_is_down(cluster) from None
        raise


def lost_run(host: str) -> ClusterError:
    """Return the error that a run was accepted by an agent on a host that knows it no more."""
    return ClusterError(
        f"host {host!r} has come back without its state: the run is lost",
        hint="`tfcluster up` starts its tasks again; then type the command again.",
    )


def _runs_elsewhere(cluster: Cluster) -> bool:
    """Return whether the cluster is up on another host than that of the head task, and does not go down there."""
    from tfcluster.client.status import take_snapshot  # most runs can be started

    try:
        snapshot = take_snapshot(cluster, announces_lost=False)
    except ClusterError:
        return False
    states = {host.host: host.state for host in snapshot.status.hosts}
    if states.get(cluster.head) is not HostState.DOWN:
        return False
    if not snapshot.topology.has_servers:
        return HostState.UP in states.values()
    return any(task.state in DESIRED_RUNNING for task in snapshot.status.tasks)


def _head_is_down(cluster: Cluster) -> ClusterError:
    is_empty = False
    with contextlib.suppress(ClusterError):
        is_empty = not cluster.connect_head().transport.has_state()
    return ClusterError(
        f"cluster {cluster.name!r} is degraded: host {cluster.head!r}, which leads its runs, "
        + ("has come back without its state" if is_empty else "is down"),
        hint="`tfcluster up` starts its tasks again; `tfcluster status` shows those of the other hosts.",
        exit_code=ExitCode.UNHEALTHY,
    )
