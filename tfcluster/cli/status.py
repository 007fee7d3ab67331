"""The commands `tfcluster status`, `devices`, `metrics` and `stack`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tfcluster.cli.completion import complete_stacks
from tfcluster.cli.options import cluster_option, host_timeout_option, output_option, resolve_target
from tfcluster.cli.output import echo, echo_exactly, echo_json, handle_hangup, status_record, while_output_is_read
from tfcluster.errors import ExitCode

if TYPE_CHECKING:
    from tfcluster.client.cluster import Cluster
    from tfcluster.client.listing import ClusterSummary


@click.command("status", epilog="Example: tfcluster status -o json | jq .state")
@click.option("-w", "--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@cluster_option
@host_timeout_option
@output_option
def command(watch: bool, cluster: str | None, timeout: float | None, output: str) -> int:
    """Show every task of a cluster: its host, state and resource usage.

    A host that cannot be reached is shown as unreachable, and its tasks as unresponsive. The command waits for a busy
    host, up to --timeout.

    With `slurm:` in the spec, `job` in the JSON output has the `id`, the `state` (`pending` or `running`), the `nodes`
    and `ends_in_s`, the seconds until its end, or null if its time is not limited. While the job is in the queue, the
    cluster's state is `pending`, and it has no tasks.

    In the JSON output, `started` is the Unix time of the `up` that started the cluster, and an active launch has its
    `members`, each with its `task`, `host`, `pid` and `exit_code`, which is null while it runs.

    If several clusters are up, and neither -c nor a cluster.yaml in this folder says which one is meant, this lists
    them as `tfcluster ls` does; the JSON output is then an array.

    With --watch, a terminal shows the status in one place, each second. Into a pipe it is printed each time that a
    state has changed; the JSON output is then one line each. It continues while tasks are not ready or hosts are
    unreachable. It exits with 3 when the cluster goes down or its job is pending, 130 after Ctrl-C, and 0 when the
    reader of the pipe exits.

    Without --watch, exits with 0 if every task is ready, 4 if one is not or the job is pending, 5 if a host is
    unreachable, 3 if the cluster is not running or its job has ended. The cluster of a launch has no tasks that must be
    ready.
    """
    from tfcluster.client.resolve import is_ambiguous

    if not watch and is_ambiguous(cluster):
        from tfcluster.client.listing import exit_code

        return int(exit_code(_list_clusters(timeout, output)))
    target = resolve_target(cluster)
    if watch:
        return _watch(target, timeout, output)
    if target.provider is not None and (waits_for := target.provider.pending()) is not None:
        return _show_pending(target, waits_for, output)
    return _show_status(target, timeout, output)


@click.command("ls", epilog="Example: tfcluster ls -o json | jq -r '.[].cluster'")
@host_timeout_option
@output_option
def ls_command(timeout: float | None, output: str) -> None:
    """List all your clusters that are up: their states, tasks and hosts, and since when.

    These are the clusters that were started from this machine. One whose hosts cannot be reached is `unreachable`,
    which is no error.
    """
    _list_clusters(timeout, output)


def _list_clusters(timeout: float | None, output: str) -> list[ClusterSummary]:
    from tfcluster.client.listing import list_clusters

    clusters = list_clusters(timeout)
    if output == "json":
        from tfcluster.protocol.serialization import to_json

        echo_json([to_json(each) for each in clusters])
    elif clusters:
        from tfcluster.ui.listings import show_clusters

        show_clusters(clusters)
    else:
        echo("no cluster is up: `tfcluster up SPEC` starts one", err=True)
    return clusters


def _show_status(target: Cluster, timeout: float | None, output: str) -> int:
    """Show the status of a cluster once; the error names the hosts that cannot be reached."""
    from tfcluster.client.rpc.parallel import unreachable, warn
    from tfcluster.core.states import ClusterState

    if output == "json":
        from tfcluster.client.status import take_snapshot_with_usage

        snapshot, _ = take_snapshot_with_usage(target, timeout)
        echo_json(status_record(snapshot.status))
    else:
        from tfcluster.client.status import take_snapshot

        snapshot = take_snapshot(target, timeout)
        from tfcluster.ui.listings import show_status  # a cluster that is down needs no rich

        show_status(snapshot.status, has_servers=snapshot.topology.has_servers)
        if note := snapshot.topology.describe_launch():
            warn(note)
    if snapshot.errors:
        raise unreachable(target, snapshot.errors)
    return int(ExitCode.DONE if snapshot.status.state is ClusterState.RUNNING else ExitCode.UNHEALTHY)


def _watch(cluster: Cluster, timeout: float | None, output: str) -> int:
    """Show the status again and again; the error that the cluster went down ends it, and so does a closed pipe."""
    from tfcluster.client.live.watch import changed_views, describe_losses, follow_view
    from tfcluster.client.rpc.parallel import warn
    from tfcluster.client.status import take_snapshot

    handle_hangup()
    snapshot = take_snapshot(cluster, timeout)
    views = while_output_is_read(follow_view(cluster, snapshot, timeout))
    if output == "json":
        for view in changed_views(views):
            echo_json(status_record(view.status))
            for line in describe_losses(view):
                warn(line)
    else:
        from tfcluster.ui.watch import watch_status

        if note := snapshot.topology.describe_launch():
            warn(note)
        watch_status(views)
    return int(ExitCode.DONE)


def _show_pending(cluster: Cluster, waits_for: str, output: str) -> int:
    """Show a cluster that has no hosts yet; nobody is asked, as scripts call this often."""
    from tfcluster.client.status import pending_status

    status = pending_status(cluster)
    assert status is not None
    if output == "json":
        echo_json(status_record(status))
    else:
        echo(f"{cluster.name}  pending  {waits_for}, `tfcluster up` continues to wait, `tfcluster down` cancels it")
    return int(ExitCode.UNHEALTHY)


@click.command("devices", epilog="Example: tfcluster devices -o json | jq '.[].name'")
@cluster_option
@host_timeout_option
@output_option
def devices_command(cluster: str | None, timeout: float | None, output: str) -> int:
    """Show every device of every task, as its server reports it now: type, memory, and of a GPU its name.

    Exits with 4 when a task does not answer, 5 when a host cannot be reached; the devices of the others are still
    shown.
    """
    from tfcluster.client.status import list_devices

    target = resolve_target(cluster)
    devices, problem = list_devices(target, timeout)
    if output == "json":
        echo_json([target.add_host(device.to_json(), host) for host, device in devices])
    else:
        from tfcluster.ui.listings import show_devices

        show_devices([device for _, device in devices], [] if target.is_local else [host for host, _ in devices])
    if problem is not None:
        raise problem
    return int(ExitCode.DONE)


@click.command("metrics", epilog="Example: tfcluster metrics -c demo > demo.prom")
@cluster_option
@host_timeout_option
def metrics_command(cluster: str | None, timeout: float | None) -> None:
    """Print what `status` shows as OpenMetrics text: the state, restarts and usage of every task, hosts, agents, runs.

    A task that is not ready and a host that is unreachable appear as metrics and are not errors: the command exits with
    0 if any host answers. A cluster that is not running (exit code 3), and one whose hosts cannot be reached (5), have
    metrics that say so.
    """
    from tfcluster.client.status import collect_metrics

    text, error = collect_metrics(resolve_target(cluster), timeout)
    echo_exactly(text.removesuffix("\n"))
    if error is not None:
        raise error


@click.command("stack", epilog="Example: tfcluster stack train-3f9a")
@click.argument("name", metavar="RUN|TASK", shell_complete=complete_stacks)
@cluster_option
@output_option
def stack_command(name: str, cluster: str | None, output: str) -> None:
    """Show what a RUN's program is executing: the Python stack of every thread in every process, without stopping them.

    RUN is an id or a unique prefix of one. The server of a TASK, such as worker:1, executes no Python: its state, its
    threads, what they wait for in the kernel, and the last lines of its log are shown.
    """
    from tfcluster.client.stacks import read_run_stacks, read_task_threads

    target = resolve_target(cluster)
    if ":" in name:  # the id of a run has none
        reply = read_task_threads(target, name)
        if output == "json":
            echo_json(reply)
        else:
            from tfcluster.ui.listings import show_task

            show_task(reply)
        return
    replies, problem = read_run_stacks(target, name)
    if output == "json":
        for each in replies:
            echo_json(each)
    else:
        from tfcluster.ui.listings import show_stacks

        show_stacks(replies)
    if problem is not None:
        raise problem
