"""The command `tfcluster dashboard`."""

from __future__ import annotations

import click

from tfcluster.cli.completion import complete_runs
from tfcluster.cli.options import cluster_option, output_option, resolve_target
from tfcluster.cli.output import echo_result, handle_hangup


@click.command("dashboard", epilog="Example: tfcluster dashboard pi-3f9a")
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port. Default: a free one.")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@cluster_option
@output_option
def command(run: str | None, port: int, no_browser: bool, cluster: str | None, output: str) -> None:
    """Serve a page with the hosts, tasks, runs, logs and events of the cluster, live. Ctrl-C stops it.

    The page is served by this command, on the loopback device of this machine only, and needs the token in the link.
    With a RUN, it opens at that run. The agents do not open any port.
    """
    from tfcluster.dashboard.server import serve

    target = resolve_target(cluster)
    handle_hangup()
    with serve(target, port, run) as page:
        echo_result(output, {"url": page.url}, f"{target.name}: {page.url} (Ctrl-C stops it)")
        if not no_browser:
            page.open_browser()
        page.wait()
