"""Resolve the cluster that a command operates on, and the hosts of that cluster."""

from __future__ import annotations

from tfcluster.client.cluster import Cluster
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import DEFAULT_SPEC, cluster_registry_path, journal_path, running_clusters, validate_name


def resolve_cluster(named: str | None) -> Cluster:
    """Resolve the cluster that the user means.

    Args:
        named: The value of -c or TFCLUSTER_CLUSTER. Without it, the cluster is the only one that is up, or else the
            one of ./cluster.yaml.

    Returns:
        The cluster.

    Raises:
        ClusterError: No cluster is up and there is no ./cluster.yaml, or several are up.
    """
    if named:
        return cluster_of(validate_name(named))
    running = running_clusters()
    if len(running) == 1:
        return cluster_of(running[0])
    own = _own_cluster()
    if own is not None and (not running or own.name in running):
        return _noted(own.name) or own
    if running:
        raise ClusterError(
            "several clusters are running: " + ", ".join(running),
            hint="Choose one with -c NAME.",
            exit_code=ExitCode.USAGE,
        )
    raise ClusterError(
        "no cluster is running, and there is no cluster.yaml here",
        hint="Start one with `tfcluster up SPEC`; `tfcluster init` writes a commented cluster.yaml.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def cluster_of(name: str) -> Cluster:
    """Return a cluster by its name.

    Its hosts are those of the registry. Without an entry they are this machine if the cluster has a journal here, or
    else those of ./cluster.yaml if that has the same name, or else this machine.

    Raises:
        ClusterError: The registry entry cannot be read.
    """
    if (noted := _noted(name)) is not None:
        return noted
    if DEFAULT_SPEC.exists() and not journal_path(name).exists():
        try:
            own = _own_cluster()
        except ClusterError:  # ignore an invalid ./cluster.yaml, as the user named the cluster
            own = None
        if own is not None and own.name == name:
            return own
    return Cluster(name)


def _noted(name: str) -> Cluster | None:
    if not cluster_registry_path(name).exists():
        return None
    from tfcluster.client import registry

    return registry.read(name)


def _own_cluster() -> Cluster | None:
    if not DEFAULT_SPEC.exists():
        return None
    from tfcluster.client.load import load_topology

    topology = load_topology(None, None)
    return Cluster(topology.cluster, topology.hosts, topology.head().host)
