"""Which cluster a command is about, and on which hosts it is."""

from __future__ import annotations

from tfcluster.client.cluster import Cluster
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import DEFAULT_SPEC, cluster_registry_path, journal_path, running_clusters, validate_name


def resolve_cluster(named: str | None) -> Cluster:
    """The cluster meant.

    Args:
        named: What -c or TFCLUSTER_CLUSTER says. Without it, the only cluster that is up, else the one of
            ./cluster.yaml.

    Raises:
        ClusterError: None is up and there is no ./cluster.yaml, or several are up.
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
    """A cluster by its name: where it was noted to be, else where it is or ./cluster.yaml has it, else here.

    Raises:
        ClusterError: What was noted cannot be read.
    """
    if (noted := _noted(name)) is not None:
        return noted
    if DEFAULT_SPEC.exists() and not journal_path(name).exists():
        try:
            own = _own_cluster()
        except ClusterError:  # whatever is wrong with it, nobody asked for it
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
