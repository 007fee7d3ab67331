"""The command `tfcluster wait`."""

from __future__ import annotations

import click

from tfcluster.cli.completion import complete_logs
from tfcluster.cli.options import cluster_option, output_option, seconds
from tfcluster.cli.output import echo_error, echo_result


@click.command("wait", epilog="Example: tfcluster wait pi-3f9a && echo done")
@click.argument("names", nargs=-1, metavar="RUN... | --ready [TASK]...", shell_complete=complete_logs)
@click.option("--ready", is_flag=True, help="Wait until every TASK is ready; without one, until all are.")
@click.option("--timeout", type=seconds(0.1), metavar="S", help="Seconds to wait. Default: no limit.")
@cluster_option
@output_option
def command(names: tuple[str, ...], ready: bool, timeout: float | None, cluster: str | None, output: str) -> int:
    """Wait until each RUN has ended, or with --ready until tasks are ready, and show nothing until then.

    RUN is an id, a name, or a unique prefix of an id. The exit code is that of the run, as `run` and `attach` have it:
    0 for one that succeeded, the script's own for a script. Of several runs, it is that of the first one in the order
    of the arguments that did not succeed. TASK is a task, a job or a pattern, as for `logs`.

    Exits with 124 if the timeout expires, 4 if a task has failed, 3 if the cluster is not running. Ctrl-C ends only the
    wait.
    """
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.errors import ExitCode

    if not names and not ready:
        raise click.UsageError("name the runs to wait for, or add --ready to wait for tasks")
    target = resolve_cluster(cluster)
    if not ready:
        from tfcluster.client.wait import wait_for_runs

        codes = {name: show_end(event, output) for name, event in wait_for_runs(target, names, timeout)}
        return next((codes[name] for name in names if codes[name]), int(ExitCode.DONE))
    from tfcluster.client.wait import wait_until_ready
    from tfcluster.core.text import pluralize

    status = wait_until_ready(target, names, timeout)
    echo_result(output, status, f"{status.cluster}: {pluralize(len(status.tasks), 'task')} ready")
    return int(ExitCode.DONE)


def show_end(event: dict[str, object], output: str) -> int:
    """Show how a run has ended, and return its exit code."""
    from tfcluster.core.runs import exit_code
    from tfcluster.errors import ClusterError

    echo_result(output, event, f"{event['run']} {event['state']}")
    if output == "text" and isinstance(error := event.get("error"), dict):
        echo_error(ClusterError.from_json(error))
    return int(exit_code(event))
