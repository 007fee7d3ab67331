"""`tfcluster restart`."""

from __future__ import annotations

import json
import sys
import time

import click

from tfcluster.cli.options import cluster_option, output_option, seconds


@click.command(
    "restart",
    short_help="End tasks and start them anew.",
    epilog="Example: tfcluster restart worker --rolling",
)
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--rolling", is_flag=True, help="One task after another, each when the one before is ready.")
@click.option(
    "--grace",
    type=seconds(0.0),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds between asking a task to end (TERM) and ending it (KILL).",
)
@click.option(
    "--timeout",
    type=seconds(0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait until all of them are ready.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before variables are lost; scripts must say so.")
@cluster_option
@output_option
def command(
    tasks: tuple[str, ...],
    rolling: bool,
    grace: float,
    timeout: float,
    yes: bool,
    cluster: str | None,
    output: str,
) -> None:
    """Restart each TASK (worker:1, or worker for the whole job; all when left out) and wait until it answers.

    Their restarts are counted anew; a task that failed or is stopped is simply started. A task that is restarted
    loses the variables that it holds: those of a ps, or, in a cluster without a ps, of any task. This is asked
    for on a terminal and needs --yes elsewhere. A run that computes on one of the tasks fails.

    Exits with 4 when a task does not get ready.
    """
    began = time.monotonic()
    from tfcluster.client import restart
    from tfcluster.client.choice import choose_cluster

    planned = restart.plan_restart(choose_cluster(cluster), tasks)
    _confirm(planned.holders, planned.runs, yes=yes)
    from tfcluster.render.restart import RestartView

    view = RestartView(planned.cluster, planned.tasks, silent=output == "json")
    status = None
    try:
        with view:
            for status in restart.carry_out(planned, rolling=rolling, grace=grace, timeout=timeout):
                view.update(status)
    except KeyboardInterrupt:
        what = "the task at hand goes on restarting, the next are left alone" if rolling else "they go on restarting"
        click.echo(f"{planned.cluster}: {what}: see `tfcluster status`", err=True)
        raise
    assert status is not None, "there is at least one status"
    if output == "json":
        click.echo(json.dumps(status.to_json()))
    else:
        view.finish_restart(status, time.monotonic() - began)


def _confirm(holders: tuple[str, ...], runs: tuple[str, ...], *, yes: bool) -> None:
    """Say what is lost, and ask whether that is meant.

    Raises:
        ClusterError: It is not, or there is nobody to ask.
    """
    from tfcluster.errors import ClusterError, ExitCode

    if runs:
        click.echo(f"runs that compute on what is restarted fail: {', '.join(runs)}", err=True)
    if not holders:
        return
    lost = f"{', '.join(holders)}: the variables in memory are lost with a restart"
    if yes:
        click.echo(lost, err=True)
    elif not sys.stdin.isatty():
        raise ClusterError(
            lost, hint="Nothing was restarted. Say --yes if that is what you want.", exit_code=ExitCode.USAGE
        )
    elif not click.confirm(f"{lost}. Go on?", err=True):
        raise ClusterError("nothing was restarted")
