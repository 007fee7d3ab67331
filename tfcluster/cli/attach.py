"""The command `tfcluster attach`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, output_option
from tfcluster.cli.output import echo


@click.command(
    "attach",
    short_help="Follow a run from its beginning to its result.",
    epilog="Example: tfcluster attach pi-3f9a",
)
@click.argument("run")
@cluster_option
@output_option
def command(run: str, cluster: str | None, output: str) -> int:
    """Show a RUN's progress and output from its beginning to its result, and exit as `run` itself would.

    RUN is an id, or enough of its beginning. Ctrl-C ends the showing and leaves the run alone; `tfcluster cancel`
    stops it. A run that has ended, also of a cluster that is down, is shown from its record.
    """
    from tfcluster.cli.run.common import show
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.run import attach
    from tfcluster.errors import ExitCode

    try:
        return show(attach(resolve_cluster(cluster), run), output)
    except KeyboardInterrupt:
        echo(f"detached; stop it with `tfcluster cancel {run}`", err=True)
        return int(ExitCode.INTERRUPTED)
