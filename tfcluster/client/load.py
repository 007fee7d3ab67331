"""Load the topology of a command from its spec: a YAML file, ./cluster.yaml, or the one-line cluster notation."""

from __future__ import annotations

from pathlib import Path

from tfcluster.core.resolve import resolve_spec
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import DEFAULT_SPEC
from tfcluster.spec.cluster_string import parse_cluster_notation
from tfcluster.spec.load import load_spec


def load_topology(spec: Path | None, notation: str | None) -> ClusterTopology:
    """Read a spec and resolve it into a topology.

    Args:
        spec: The file; None for ./cluster.yaml.
        notation: The cluster in the one-line notation, instead of a file.

    Raises:
        ClusterError: Both are given, there is no file, or the spec is invalid.
    """
    if notation is not None:
        if spec is not None:
            raise ClusterError("give a spec or --cluster-spec, not both", exit_code=ExitCode.USAGE)
        return resolve_spec(parse_cluster_notation(notation), "--cluster-spec")
    if spec is None:
        spec = DEFAULT_SPEC
        if not spec.exists():
            raise ClusterError(
                "there is no cluster.yaml here and no spec was named",
                hint="`tfcluster init` writes a commented cluster.yaml; or name one: `tfcluster up SPEC`.",
                exit_code=ExitCode.USAGE,
            )
    return resolve_spec(load_spec(spec), str(spec))
