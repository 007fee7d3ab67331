"""The command `tfcluster doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from tfcluster.cli.options import output_option
from tfcluster.cli.output import echo_json
from tfcluster.cli.up import examining


@click.command(
    "doctor",
    short_help="Examine the hosts of a spec.",
    epilog="Example: tfcluster doctor cluster.yaml -o json | jq '.checks[] | select(.ok | not)'",
)
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@output_option
def command(spec: Path | None, output: str) -> int:
    """Examine all hosts of SPEC (./cluster.yaml when left out) as `up` does, and change nothing on them.

    Of the spec only `python:` is run there, in isolated mode: no `setup:`, and without `env:`.

    It looks whether each can be reached and has a Python with TensorFlow, whether its clock is right, whether its
    ports and GPUs are free, and whether the hosts can dial each other; and says what to type where something is wrong.

    Exits with 0 when nothing wrong was found, 5 when a host cannot be reached, 1 otherwise.
    """
    from tfcluster.client.doctor import check_hosts
    from tfcluster.client.resolve import load_topology

    topology = load_topology(spec, None)
    with examining(topology.cluster, output) as progress:
        checks, code = check_hosts(topology, progress)
    if output == "json":
        echo_json({"cluster": topology.cluster, "checks": [check.to_json() for check in checks]})
    else:
        from tfcluster.ui.listings import show_checks

        show_checks(checks)
    return int(code)
