"""The command `tfcluster restart`."""

from __future__ import annotations

import time

import click

from tfcluster import settings
from tfcluster.cli.completion import complete_tasks
from tfcluster.cli.hints import complete_hint
from tfcluster.cli.options import cluster_option, grace_option, output_option, resolve_target, seconds
from tfcluster.cli.output import echo, echo_json, require_consent, status_record
from tfcluster.errors import usage_error


@click.command("restart", epilog="Example: tfcluster restart worker --rolling")
@click.argument("tasks", nargs=-1, metavar="[TASK]...", shell_complete=complete_tasks)
@click.option("--rolling", is_flag=True, help="Restart one task at a time, waiting for each to become ready.")
@grace_option
@click.option(
    "--timeout",
    type=seconds(0.1),
    default=settings.READY_TIMEOUT_SECONDS,
    show_default=True,
    metavar="S",
    help="Seconds to wait until they are ready; with --rolling, for each.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation, even if variables or runs are lost.")
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
    """Restart each TASK (worker:1, or worker for the whole job; default: all) and wait until it is ready.

    This resets their restart counts; a task that failed or is stopped is started. A run that computes on a restarted
    task fails, unless its program continues without lost tasks, and the variables that the task holds are lost: those
    of a ps, or of any task in a cluster without a ps. In both cases the command asks for confirmation, or requires
    --yes.

    Exits with 4 if a task does not become ready.
    """
    began = time.monotonic()
    from tfcluster.client import restart

    target = resolve_target(cluster).upgrading()
    plan, topology = restart.plan_restart(target, tasks)
    if plan.losses:
        _confirm(plan.cluster, ", ".join(plan.losses), yes, output)
    from tfcluster.ui.progress_views import RestartView

    view = RestartView(plan.cluster, plan.tasks, silent=output == "json")
    status = None
    try:
        with view:
            statuses = restart.restart_tasks(
                target, topology, plan, rolling=rolling, grace=grace, timeout=timeout, show_line=view.show_line
            )
            for status in statuses:
                view.update(status)
    except KeyboardInterrupt:
        what = (
            "the current task is still restarting; the remaining tasks are not restarted"
            if rolling
            else "the tasks are still restarting"
        )
        echo(complete_hint(f"{plan.cluster}: {what}; see `tfcluster status`"), err=True)
        raise
    assert status is not None, "there is at least one status"
    if output == "json":
        echo_json(status_record(status))
    else:
        view.finish_restart(status, time.monotonic() - began)


def _confirm(cluster: str, losses: str, yes: bool, output: str) -> None:
    """Print what is lost by a restart, and ask for confirmation; raise a ClusterError without it."""
    if yes:
        echo(f"LOST: {losses}", err=True)
        return
    refusal = f"cluster {cluster!r} would lose {losses}: nothing was restarted"
    question = f"LOST: {losses}\nContinue and lose that?"
    require_consent(question, output, usage_error(refusal, "Add --yes to restart anyway."), "nothing was restarted")
