"""tfcluster turns a YAML file into a running, supervised TensorFlow cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

from tfcluster.version import __version__ as __version__

if TYPE_CHECKING:
    from tfcluster.connection import ClusterConnection


def connect(cluster: str | None = None) -> ClusterConnection:
    """Connect to a cluster that is up, for a notebook or your own program.

    Args:
        cluster: The cluster's name; without it, the cluster is chosen as by the commands.

    Returns:
        The cluster's target for sessions, its resolver for strategies, its devices, and its runs.

    Raises:
        tfcluster.errors.ClusterError: There is no such cluster, or it is not running.
    """
    from tfcluster.connection import ClusterConnection  # agents import this package too, and need none of it

    return ClusterConnection(cluster)


def metric(name: str, value: SupportsFloat, step: SupportsIndex) -> None:
    """Report a value of this run, such as its loss, for `tfcluster dashboard` and for the events of `run -o json`.

    In a process that `tfcluster run` or `launch` has not started, it does nothing but check its arguments. It never
    waits, and of long series only some points are kept.

    Args:
        name: What the value is, such as `loss`.
        value: The value: a number, or an array or tensor of one number. NaN and infinities show as gaps of the curve.
        step: The step of the training that it belongs to, counted from 0.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The name is empty, too long or has control characters, the step is negative, or there are too many
            names.
    """
    from tfcluster.reporting import report  # agents import this package too, and need none of it

    report(name, value, step)
