"""The command `tfcluster dashboard`."""

from __future__ import annotations

from pathlib import Path

import click

from tfcluster.cli.completion import complete_runs
from tfcluster.cli.options import OutputFilePath, cluster_option, output_option, resolve_target
from tfcluster.cli.output import echo_result, handle_hangup


@click.command("dashboard", epilog="Example: tfcluster dashboard --report pi.html pi-3f9a")
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port. Default: a free one.")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@click.option(
    "--report",
    type=OutputFilePath([".html"]),
    metavar="FILE.html",
    help="Write the report of a finished run as one file instead, by default of the latest one.",
)
@cluster_option
@output_option
def command(
    run: str | None, port: int, no_browser: bool, report: Path | None, cluster: str | None, output: str
) -> None:
    """Serve a page with the hosts, tasks, runs, logs and events of the cluster, live. Ctrl-C stops it.

    The page is served by this command, on the loopback device of this machine only, and needs the token in the link.
    With a RUN, it opens at that run. The agents do not open any port.
    """
    from tfcluster.dashboard.server import serve

    target = resolve_target(cluster)
    if report is not None:
        if port or no_browser:
            raise click.UsageError(
                "--report cannot be combined with --port or --no-browser: it writes a file and serves no page."
            )
        from tfcluster.dashboard.report import write_report

        run_id = write_report(target, run, report)
        echo_result(output, {"run": run_id, "report": str(report)}, f"the report of {run_id} is in {report}")
        return
    handle_hangup()
    with serve(target, port, run) as page:
        echo_result(output, {"url": page.url}, f"{target.name}: {page.url} (Ctrl-C stops it)")
        if not no_browser:
            page.open_browser()
        page.wait()
