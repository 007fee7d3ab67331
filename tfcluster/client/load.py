"""The topology that a command means: of a file, of ./cluster.yaml, or of a one-line notation."""

from __future__ import annotations

from pathlib import Path

from tfcluster.core.resolve import resolve_spec
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import DEFAULT_SPEC
from tfcluster.spec.cluster_string import parse_cluster_notation
from tfcluster.spec.load import load_spec


def load_topology(spec: Path | None, notation: str | None) -> ClusterTopology:
    """Read and lay out a spec.

    Args:
        spec: The file; ./cluster.yaml when None.
        notation: The cluster in one line, in place of a file.

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
