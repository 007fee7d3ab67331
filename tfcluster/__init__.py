"""tfcluster turns a YAML file into a running, supervised TensorFlow cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfcluster.version import __version__ as __version__

if TYPE_CHECKING:
    from tfcluster.connection import ClusterConnection


def connect(cluster: str | None = None) -> ClusterConnection:
    """Connect to a cluster that is up, for a notebook or a program of your own.

    Args:
        cluster: The cluster's name; without it, the cluster is chosen as by the commands.

    Returns:
        The cluster's target for sessions, its resolver for strategies, its devices, and its runs.

    Raises:
        tfcluster.errors.ClusterError: There is no such cluster, or it is not running.
    """
    from tfcluster.connection import ClusterConnection  # agents import this package too, and need none of it

    return ClusterConnection(cluster)
