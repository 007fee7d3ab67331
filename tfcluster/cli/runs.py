"""The commands `tfcluster runs`, `attach` and `cancel`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, output_option
from tfcluster.cli.output import echo, echo_json


@click.command("runs", short_help="List the cluster's runs.", epilog="Example: tfcluster runs -n 5")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N runs.")
@cluster_option
@output_option
def command(tail: int | None, cluster: str | None, output: str) -> None:
    """List the cluster's runs, the oldest first, with their inputs, states and results.

    The records of the latest hundred runs that have ended are kept, also after `down`.
    """
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs import list_runs

    runs = list_runs(resolve_cluster(cluster), tail)
    if output == "json":
        echo_json(runs)
    else:
        from tfcluster.ui.listings import show_runs

        show_runs(runs)


@click.command(
    "attach",
    short_help="Follow a run from its beginning to its result.",
    epilog="Example: tfcluster attach pi-3f9a",
)
@click.argument("run")
@cluster_option
@output_option
def attach_command(run: str, cluster: str | None, output: str) -> int:
    """Show a RUN's progress and output from its beginning to its result, and exit as `run` itself would.

    RUN is an id or a unique prefix of one. Ctrl-C detaches and does not affect the run; `tfcluster cancel` stops it.
    A run that has ended is shown from its record, even if the cluster is down.
    """
    from tfcluster.cli.run_events import RunOutput, show
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs import attach
    from tfcluster.errors import ExitCode

    try:
        return show(attach(resolve_cluster(cluster), run), RunOutput(json=output == "json"))
    except KeyboardInterrupt:
        echo(f"detached; stop it with `tfcluster cancel {run}`", err=True)
        return int(ExitCode.INTERRUPTED)


@click.command("cancel", short_help="Stop runs.", epilog="Example: tfcluster cancel pi-3f9a")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_option
@output_option
def cancel_command(runs: tuple[str, ...], cluster: str | None, output: str) -> None:
    """Stop each RUN, given by its id or a unique prefix of it; a run that has ended is not changed."""
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.runs import cancel_run

    chosen = resolve_cluster(cluster)
    for run in runs:
        cancelled = cancel_run(chosen, run)
        if output == "json":
            echo_json(cancelled)
        else:
            echo(cancelled["run"])
