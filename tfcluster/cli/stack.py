"""The command `tfcluster stack`."""

from __future__ import annotations

import click

from tfcluster.cli.completion import complete_stacks
from tfcluster.cli.options import cluster_option, output_option, resolve_target
from tfcluster.cli.output import echo_json


@click.command("stack", epilog="Example: tfcluster stack train-3f9a")
@click.argument("name", metavar="RUN|TASK", shell_complete=complete_stacks)
@cluster_option
@output_option
def command(name: str, cluster: str | None, output: str) -> None:
    """Show what a RUN's program is executing: the Python stack of every thread in every process, without stopping them.

    RUN is an id or a unique prefix of one. The server of a TASK, such as worker:1, executes no Python: its state, its
    threads, what they wait for in the kernel, and the last lines of its log are shown.
    """
    from tfcluster.client.stacks import is_task, read_run_stacks, read_task_threads

    target = resolve_target(cluster)
    if is_task(name):
        reply = read_task_threads(target, name)
        if output == "json":
            echo_json(reply)
        else:
            from tfcluster.ui.stack_view import show_task

            show_task(reply)
        return
    replies, problem = read_run_stacks(target, name)
    if output == "json":
        for each in replies:
            echo_json(each)
    else:
        from tfcluster.ui.stack_view import show_run

        show_run(replies)
    if problem is not None:
        raise problem
