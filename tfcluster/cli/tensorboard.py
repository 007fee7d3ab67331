"""The commands `tfcluster tensorboard`, and `profile`, whose traces it shows."""

from __future__ import annotations

from pathlib import Path

import click

from tfcluster.cli.completion import complete_runs, complete_tasks
from tfcluster.cli.options import FiniteFloat, cluster_option, output_option, resolve_target
from tfcluster.cli.output import echo, echo_result, handle_hangup


@click.command("tensorboard", epilog="Example: tfcluster tensorboard linear-0b51")
@click.argument("data", required=False, metavar="[RUN|LOGDIR|HOST:LOGDIR]", shell_complete=complete_runs)
@cluster_option
@output_option
def command(data: str | None, cluster: str | None, output: str) -> None:
    """Run TensorBoard on the host that has the data, and print its URL on this machine. Ctrl-C stops it.

    RUN is an id, or a unique prefix of one: its data is in the folder that its parameters name (--logdir), or among
    its own files. LOGDIR is a folder on this machine, or on another host if this machine does not have it. Without
    either, the latest run is shown.

    On another host, TensorBoard listens on the loopback device only, and its port is forwarded through the connection
    that the commands share.
    """
    from tfcluster.client.tensorboard import NoLogFolderError, find_folders, find_here, serve
    from tfcluster.ui.progress_views import StatusLine

    here = None if data is None else find_here(data)
    if here is not None:
        target, folders = None, [here]
    else:
        target = resolve_target(cluster)
        folders = find_folders(target, data)
    handle_hangup()
    progress = StatusLine(silent=output == "json")
    for number, folder in enumerate(folders, 1):
        try:
            progress.show("starting TensorBoard")  # which may import TensorFlow
            with progress, serve(target, folder) as server:
                progress.end()
                found = {"url": server.url, "host": server.host, "logdir": server.logdir}
                text = f"TensorBoard shows {server.logdir} on {server.host}: {server.url} (Ctrl-C stops it)"
                echo_result(output, found, text)
                raise server.wait_for_end()
        except NoLogFolderError:
            if number == len(folders):
                raise


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
def profile_command(tasks: tuple[str, ...], seconds: float, logdir: Path, cluster: str | None, output: str) -> None:
    """Capture what each TASK computes (worker:1, or worker for the whole job; default: all) for a few seconds, while a
    run is using it, and write the traces to DIR/plugins/profile on this machine.

    The traces come from the profiler of TensorFlow's own servers; operations in a script's own process are not in them.
    TensorBoard shows them with its plugin: pip install tensorboard tensorboard-plugin-profile. A task on which nothing
    runs has no trace.
    """
    from tfcluster.client.profile import capture_profile

    profile = capture_profile(resolve_target(cluster), tasks, seconds, logdir)
    if profile.idle:
        echo(f"note: nothing ran on {', '.join(profile.idle)} during the capture", err=True)
    written = {"folder": str(profile.folder), "tasks": profile.tasks, "idle": profile.idle}
    echo_result(output, written, f"the traces of {', '.join(profile.tasks)} are in {profile.folder}")
    if profile.problem is not None:
        raise profile.problem
