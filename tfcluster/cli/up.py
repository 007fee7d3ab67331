"""`tfcluster up`."""

from __future__ import annotations

import importlib
import json
import threading
import time
from pathlib import Path

import click

from tfcluster.cli.options import output_option, seconds


@click.command(
    "up",
    short_help="Start a cluster from a spec and wait until it is ready.",
    epilog="Example: tfcluster up examples/cluster.yaml --timeout 30",
)
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@click.option(
    "--cluster-spec",
    metavar="NOTATION",
    help="A cluster in one line instead of a file: 'master|localhost:2222,worker|localhost:2223;localhost:2224'.",
)
@click.option("--dry-run", is_flag=True, help="Print what would start, where, and why; start nothing.")
@click.option(
    "--timeout",
    type=seconds(0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait until every task is ready.",
)
@output_option
def command(spec: Path | None, cluster_spec: str | None, dry_run: bool, timeout: float, output: str) -> None:
    """Start the cluster of SPEC (./cluster.yaml when left out) and wait until every task answers.

    A second `up` of the same spec changes nothing. Exits with 4 when a task does not get ready.
    """
    began = time.monotonic()
    from tfcluster.client import up

    up.begin()  # before the imports that reading the spec takes: they and the agent's go on side by side
    from tfcluster.client.specs import read_layout

    layout = read_layout(spec, cluster_spec)
    # rich takes as long to import as a server to start; it is imported while the agent loads TensorFlow's library.
    threading.Thread(target=importlib.import_module, args=["tfcluster.render.up"], daemon=True).start()
    prepared = up.prepare(layout, dry=dry_run)
    from tfcluster.render.up import UpView

    view = UpView(prepared.layout.cluster, silent=output == "json")
    if dry_run:
        if output == "json":
            click.echo(json.dumps(prepared.to_json()))
        else:
            view.show_plan(prepared.operations)
        return
    if prepared.operations:
        up.apply(prepared)
    status = None
    try:
        with view:
            for status in up.watch_until_ready(prepared.layout.cluster, timeout):
                view.update(status)
    except KeyboardInterrupt:
        click.echo(f"{prepared.layout.cluster} goes on starting: see `tfcluster status`, `tfcluster down`", err=True)
        raise
    assert status is not None, "there is at least one status"
    if output == "json":
        click.echo(json.dumps(status.to_json()))
    else:
        view.finish(status, len(prepared.operations), time.monotonic() - began)
