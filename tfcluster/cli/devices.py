"""`tfcluster devices`."""

from __future__ import annotations

import json

import click

from tfcluster.cli.options import cluster_option, output_option


@click.command(
    "devices",
    short_help="Show every device of every task.",
    epilog="Example: tfcluster devices -o json | jq '.[].name'",
)
@cluster_option
@output_option
def command(cluster: str | None, output: str) -> int:
    """Show every device of every task, as its server names it now: type, memory, and for GPUs what they are.

    Exits with 4 when a task does not answer; the devices of the others are shown all the same.
    """
    from tfcluster.client.choice import choose_cluster
    from tfcluster.client.connection import Connection
    from tfcluster.errors import ClusterError, ExitCode
    from tfcluster.protocol.messages import Call

    answer = Connection(choose_cluster(cluster)).call(Call.DEVICES)
    if output == "json":
        click.echo(json.dumps(answer["devices"]))
    else:
        from tfcluster.model.devices import Device
        from tfcluster.render.devices import show_devices

        show_devices([Device.from_json(device) for device in answer["devices"]])
    if answer["silent"]:
        raise ClusterError(
            "\n".join(answer["silent"]),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` what one said last.",
            exit_code=ExitCode.UNHEALTHY,
        )
    return int(ExitCode.DONE)
