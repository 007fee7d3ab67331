"""The command `tfcluster doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from tfcluster.cli.options import output_option
from tfcluster.cli.output import echo_json
from tfcluster.cli.up import preflight_progress


@click.command(
    "doctor",
    short_help="Check the hosts of a spec.",
    epilog="Example: tfcluster doctor cluster.yaml -o json | jq '.checks[] | select(.ok | not)'",
)
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@output_option
def command(spec: Path | None, output: str) -> int:
    """Check all hosts of SPEC (default: ./cluster.yaml) as `up` does, without changing anything on them.

    Of the spec, only `python:` is executed there, in isolated mode: no `setup:`, and without `env:`.

    It checks whether each host can be reached and has a Python with TensorFlow, whether its clock is right, whether
    its ports and GPUs are free, and whether the hosts can connect to each other; and prints a fix for each problem.

    Exits with 0 if there is no problem, 5 if a host cannot be reached, 1 otherwise.
    """
    from tfcluster.client.preflight import check_hosts
    from tfcluster.client.resolve import load_topology

    topology = load_topology(spec, None)
    with preflight_progress(topology.cluster, output) as progress:
        checks, code = check_hosts(topology, progress)
    if output == "json":
        echo_json({"cluster": topology.cluster, "checks": [check.to_json() for check in checks]})
    else:
        from tfcluster.ui.listings import show_checks

        show_checks(checks)
    return int(code)
