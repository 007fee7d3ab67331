"""The command `tfcluster devices`."""

from __future__ import annotations

import click

from tfcluster.cli.options import cluster_option, output_option
from tfcluster.cli.output import echo_json


@click.command(
    "devices",
    short_help="Show every device of every task.",
    epilog="Example: tfcluster devices -o json | jq '.[].name'",
)
@cluster_option
@output_option
def command(cluster: str | None, output: str) -> int:
    """Show every device of every task, as its server names it now: type, memory, and for GPUs what they are.

    Exits with 4 when a task does not answer, 5 when a host cannot be reached; the devices of the others are shown
    all the same.
    """
    from tfcluster.client.devices import list_devices
    from tfcluster.client.resolve import resolve_cluster
    from tfcluster.errors import ExitCode

    devices, problem = list_devices(resolve_cluster(cluster))
    if output == "json":
        echo_json(devices)
    else:
        from tfcluster.core.devices import Device
        from tfcluster.ui.devices import show_devices

        hosts = [device["host"] for device in devices if "host" in device]
        show_devices([Device.from_json(device) for device in devices], hosts)
    if problem is not None:
        raise problem
    return int(ExitCode.DONE)
