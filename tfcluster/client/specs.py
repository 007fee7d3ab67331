"""The layout that a command means: of a file, of ./cluster.yaml, or of a one-line notation."""

from __future__ import annotations

from pathlib import Path

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.laying_out import lay_out
from tfcluster.model.layout import Layout
from tfcluster.places import DEFAULT_SPEC
from tfcluster.spec.cluster_notation import parse_cluster_notation
from tfcluster.spec.load import load_spec


def read_layout(spec: Path | None, notation: str | None) -> Layout:
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
        return lay_out(parse_cluster_notation(notation), "--cluster-spec")
    if spec is None:
        spec = DEFAULT_SPEC
        if not spec.exists():
            raise ClusterError(
                "there is no cluster.yaml here and no spec was named",
                hint="`tfcluster init` writes a commented cluster.yaml; or name one: `tfcluster up SPEC`.",
                exit_code=ExitCode.USAGE,
            )
    return lay_out(load_spec(spec), str(spec))
