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
@click.option("--share", is_flag=True, help="Print a second link, for readers: without actions, logs and errors.")
@cluster_option
@output_option
def command(run: str | None, port: int, no_browser: bool, share: bool, cluster: str | None, output: str) -> None:
    """Serve a page with the hosts, tasks, runs, logs and events of the cluster, live. Ctrl-C stops it.

    The page is served by this command, on the loopback device of this machine only, and needs the token in the link.
    With a RUN, it opens at that run. The agents do not open any port.

    With --share, a second link is for other accounts of this machine, or for others who forward the port by ssh. It
    shows the same page without actions, and without logs and errors, which can contain environment variables.
    """
    from tfcluster.dashboard.server import serve

    target = resolve_target(cluster)
    handle_hangup()
    with serve(target, port, run, is_shared=share) as page:
        value, text = {"url": page.url}, f"{target.name}: {page.url} (Ctrl-C stops it)"
        if page.share is not None:
            value["share"] = page.share
            text += f"\nfor readers: {page.share}"
        echo_result(output, value, text)
        if not no_browser:
            page.open_browser()
        page.wait()
