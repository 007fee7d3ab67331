"""Which cluster a command is about."""

from __future__ import annotations

from pathlib import Path

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.places import check_name, clusters_up

#: The spec that commands take when none is named.
DEFAULT_SPEC = Path("cluster.yaml")


def choose_cluster(named: str | None) -> str:
    """The name of the cluster meant.

    Args:
        named: What -c or TFCLUSTER_CLUSTER says. Without it, the only cluster that is up, else the one of
            ./cluster.yaml.

    Raises:
        ClusterError: None is up and there is no ./cluster.yaml, or several are up.
    """
    if named:
        return check_name(named)
    running = clusters_up()
    if len(running) == 1:
        return running[0]
    own = _own_cluster()
    if own is not None and (not running or own in running):
        return own
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


def _own_cluster() -> str | None:
    if not DEFAULT_SPEC.exists():
        return None
    from tfcluster.spec.load import load_spec

    return load_spec(DEFAULT_SPEC).name
