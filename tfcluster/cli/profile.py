"""The command `tfcluster profile`."""

from __future__ import annotations

from pathlib import Path

import click

from tfcluster.cli.completion import complete_tasks
from tfcluster.cli.options import FiniteFloat, cluster_option, output_option
from tfcluster.cli.output import echo, echo_result


@click.command("profile", epilog="Example: tfcluster profile worker --seconds 5 --logdir logs")
@click.argument("tasks", nargs=-1, metavar="[TASK]...", shell_complete=complete_tasks)
@click.option(
    "--seconds",
    type=FiniteFloat(min=0.1, max=600),
    default=2.0,
    show_default=True,
    metavar="N",
    help="How long to trace.",
)
@click.option(
    "--logdir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="TensorBoard's log folder, on this machine.",
)
@cluster_option
@output_option
def command(tasks: tuple[str, ...], seconds: float, logdir: Path, cluster: str | None, output: str) -> None:
    """Capture what each TASK computes (worker:1, or worker for the whole job; default: all) for a few seconds, while a
    run is using it, and write the traces to DIR/plugins/profile on this machine.

    The traces come from the profiler of TensorFlow's own servers; operations in a script's own process are not in them.
    TensorBoard shows them with its plugin: pip install tensorboard tensorboard-plugin-profile. A task on which nothing
    runs has no trace.
    """
    from tfcluster.client.profile import capture_profile
    from tfcluster.client.resolve import resolve_cluster

    profile = capture_profile(resolve_cluster(cluster), tasks, seconds, logdir)
    if profile.idle:
        echo(f"note: nothing ran on {', '.join(profile.idle)} meanwhile", err=True)
    written = {"folder": str(profile.folder), "tasks": profile.tasks, "idle": profile.idle}
    echo_result(output, written, f"the traces of {', '.join(profile.tasks)} are in {profile.folder}")
    if profile.problem is not None:
        raise profile.problem
