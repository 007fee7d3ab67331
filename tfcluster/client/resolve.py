"""Resolve what a command operates on: the cluster and its hosts by name, or the topology of a spec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.client.cluster import Cluster
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import DEFAULT_SPEC, cluster_registry_path, journal_path, running_clusters, validate_name

if TYPE_CHECKING:
    from tfcluster.core.topology import ClusterTopology


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
        return _registered(own.name) or own
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
    if (registered := _registered(name)) is not None:
        return registered
    if DEFAULT_SPEC.exists() and not journal_path(name).exists():
        try:
            own = _own_cluster()
        except ClusterError:  # ignore an invalid ./cluster.yaml, as the user named the cluster
            own = None
        if own is not None and own.name == name:
            return own
    return Cluster(name)


def _registered(name: str) -> Cluster | None:
    if not cluster_registry_path(name).exists():
        return None
    from tfcluster.client import registry

    return registry.read(name)


def _own_cluster() -> Cluster | None:
    if not DEFAULT_SPEC.exists():
        return None
    topology = load_topology(None, None)
    return Cluster(topology.cluster, topology.hosts, topology.head().host)


def load_topology(spec: Path | None, notation: str | None) -> ClusterTopology:
    """Read a spec and resolve it into a topology.

    Args:
        spec: The file; None for ./cluster.yaml.
        notation: The cluster in the one-line notation, instead of a file.

    Raises:
        ClusterError: Both are given, there is no file, or the spec is invalid.
    """
    from tfcluster.core.resolve import resolve_spec

    if notation is not None:
        if spec is not None:
            raise ClusterError("give a spec or --cluster-spec, not both", exit_code=ExitCode.USAGE)
        from tfcluster.spec.load import parse_cluster_notation

        return resolve_spec(parse_cluster_notation(notation), "--cluster-spec")
    if spec is None:
        spec = DEFAULT_SPEC
        if not spec.exists():
            raise ClusterError(
                "there is no cluster.yaml here, and no spec was given",
                hint="`tfcluster init` writes a commented cluster.yaml; or give one: `tfcluster up SPEC`.",
                exit_code=ExitCode.USAGE,
            )
    from tfcluster.spec.load import load_spec  # imports pydantic, which most commands do not need

    return resolve_spec(load_spec(spec), str(spec))
