"""The commands `tfcluster exec` and `env`: any command with the cluster's environment, and that environment itself."""

from __future__ import annotations

from typing import NoReturn

import click

from tfcluster.cli.completion import complete_exec_targets, complete_tasks
from tfcluster.cli.options import cluster_option, resolve_target
from tfcluster.cli.output import echo, echo_exactly


@click.command(
    "exec",
    epilog="Example: tfcluster exec --on worker:0 -- nvidia-smi",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--on",
    metavar="TASK|HOST",
    shell_complete=complete_exec_targets,
    help="Run it on another host of the cluster: as TASK, or on HOST.",
)
@cluster_option
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def command(on: str | None, cluster: str | None, argv: tuple[str, ...]) -> NoReturn:
    """Run COMMAND with the environment that describes the cluster to a script: TF_CONFIG, TFCLUSTER_MASTER,
    TFCLUSTER_CLUSTER. See `tfcluster env`.

    On this machine, COMMAND replaces the tfcluster process and starts in the current folder, even with --on TASK. On
    another host it runs through ssh, in your home folder there, has a terminal if this command has one, and is stopped
    when this command is stopped. With --on TASK it has the environment of the task's server: its variables in the
    spec, its GPUs, and its place in TF_CONFIG.

    The exit code is COMMAND's, or 127 if COMMAND is not found.
    """
    from tfcluster.client.exec import find_exec_target, replace_process

    target = resolve_target(cluster)
    replace_process(target, None if on is None else find_exec_target(target, on), argv)


@click.command("env", epilog='Example: eval "$(tfcluster env)"')
@click.argument("task", required=False, shell_complete=complete_tasks)
@click.option(
    "--format",
    type=click.Choice(["sh", "json", "dotenv"]),
    default="sh",
    show_default=True,
    help="Commands for a shell, a JSON object, or lines for docker's --env-file and python-dotenv.",
)
@cluster_option
def env_command(task: str | None, format: str, cluster: str | None) -> None:
    """Print the environment variables that describe the cluster to a program on this machine, or those of a TASK.

    TF_CONFIG has the cluster, in which the program is the chief, or the place of TASK. TFCLUSTER_MASTER is the target
    for a session. The variables that the spec gives TASK are included, with secret values.
    """
    from tfcluster.client.exec import environment_here, find_exec_target, request_environment
    from tfcluster.core.environment import format_dotenv, format_json, format_sh, needs_quotes

    target = resolve_target(cluster)
    if task is None:
        variables, network = environment_here(target)
    else:
        reply = request_environment(target, find_exec_target(target, task))
        variables, network = reply.variables, reply.network
    formats = {"sh": format_sh, "json": format_json, "dotenv": format_dotenv}
    echo_exactly(formats[format](variables))
    if network is not None and not network.contains_this_process():
        echo(
            f"note: the servers of {target.name} are in its private network, and this shell is not: "
            "`tfcluster exec -- COMMAND` runs a command inside, for example a shell",
            err=True,
        )
    quoted = [name for name, value in variables.items() if needs_quotes(value)]
    if format == "dotenv" and quoted:
        echo(f"note: docker --env-file adds the quotes of {', '.join(quoted)} to the value", err=True)
