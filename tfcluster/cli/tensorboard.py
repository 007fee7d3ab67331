"""The command `tfcluster tensorboard`."""

from __future__ import annotations

import signal

import click

from tfcluster.cli.completion import complete_runs
from tfcluster.cli.options import cluster_option, output_option
from tfcluster.cli.output import echo_result


@click.command("tensorboard", epilog="Example: tfcluster tensorboard linear-0b51")
@click.argument("data", required=False, metavar="[RUN|LOGDIR|HOST:LOGDIR]", shell_complete=complete_runs)
@cluster_option
@output_option
def command(data: str | None, cluster: str | None, output: str) -> None:
    """Run TensorBoard on the host that has the data, and print its URL on this machine. Ctrl-C stops it.

    RUN is an id, or a unique prefix of one: its data is in the folder that its parameters name (--logdir), or among
    its own files. LOGDIR is a folder on this machine, or on another host if this machine does not have it. Without
    either, the latest run is shown.

    On another host, TensorBoard listens on the loopback device only, and ssh forwards its port through the connection
    that the commands share.
    """
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.client.tensorboard import NoLogFolderError, find_folders, find_here, serve
    from tfcluster.ui.progress_views import StatusLine

    here = None if data is None else find_here(data)
    if here is not None:
        target, folders = None, [here]
    else:
        target = resolve_cluster(cluster)
        folders = find_folders(target, data)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a terminal that is closed ends all as Ctrl-C does
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    progress = StatusLine(silent=output == "json")
    for number, folder in enumerate(folders, 1):
        try:
            progress.show("starting TensorBoard")  # which may import TensorFlow
            with progress, serve(target, folder) as server:
                progress.end()
                found = {"url": server.url, "host": server.host, "logdir": server.logdir}
                text = f"TensorBoard shows {server.logdir} on {server.host}: {server.url} (Ctrl-C stops it)"
                echo_result(output, found, text)
                raise server.wait()
        except NoLogFolderError:
            if number == len(folders):
                raise
