"""The command `tfcluster validate`."""

from __future__ import annotations

from pathlib import Path

import click

from tfcluster.cli.options import output_option
from tfcluster.cli.output import echo, echo_json


@click.command(
    "validate",
    short_help="Check a spec without starting anything.",
    epilog="Example: tfcluster validate cluster.yaml",
)
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@click.option("--cluster-spec", metavar="NOTATION", help="A cluster in one line instead of a file.")
@output_option
def command(spec: Path | None, cluster_spec: str | None, output: str) -> None:
    """Check SPEC, ./cluster.yaml by default, and report every problem at once with its line and column.

    Exits with 2 if there are problems.
    """
    from tfcluster.client.resolve import load_topology
    from tfcluster.core.text import summarize_list
    from tfcluster.paths import LOCAL_HOST

    topology = load_topology(spec, cluster_spec)
    if output == "json":
        echo_json(topology.masked().to_json())
        return
    jobs = ", ".join(
        f"{len(tasks)} {job}" + (f" (max {topology.max[job]})" if job in topology.max else "")
        for job, tasks in topology.addresses().items()
    )
    names = [host.name for host in topology.hosts]
    where = "" if names == [LOCAL_HOST] else f" on {summarize_list(names)}"
    echo(f"{topology.spec} is valid: cluster {topology.cluster!r}, {jobs}{where}")
