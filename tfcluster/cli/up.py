"""The command `tfcluster up`."""

from __future__ import annotations

import importlib
import threading
import time
from pathlib import Path

import click

from tfcluster.cli.apply_flow import carry_out, changing_options, examining


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
@click.option("--mixed-tensorflow", is_flag=True, help="Go on where the hosts have different versions of TensorFlow.")
@changing_options
def command(
    spec: Path | None,
    cluster_spec: str | None,
    mixed_tensorflow: bool,
    dry_run: bool,
    yes: bool,
    timeout: float,
    output: str,
) -> None:
    """Start the cluster of SPEC (./cluster.yaml when left out) and wait until every task answers.

    A second `up` of the same spec changes nothing; after an edit it starts, restarts and stops only what the edit is
    about. It asks, or wants --yes, before a ps loses its variables or a run its tasks.

    All hosts are examined before anything starts, and everything that is wrong on any of them is told at once. A spec
    is code: `up` runs its `setup:` commands and its `python:` on the hosts. --dry-run runs of it only `python:`, in
    isolated mode, and changes nothing on any host.

    Exits with 4 when a task does not get ready, 5 when a host cannot be reached.
    """
    began = time.monotonic()
    from tfcluster.client import up

    if not dry_run:
        # Prestart the agent before the imports for reading the spec, so that these and the agent's run in parallel.
        up.begin()
    from tfcluster.client.load import load_topology

    topology = load_topology(spec, cluster_spec)
    # Importing rich takes as long as starting a server, so import it while the agent loads TensorFlow's library.
    threading.Thread(target=importlib.import_module, args=["tfcluster.ui.up"], daemon=True).start()
    with examining(topology.cluster, output) as progress:
        prepared = up.prepare(topology, dry=dry_run, progress=progress, mixed=mixed_tensorflow)
    carry_out(prepared, dry_run=dry_run, yes=yes, timeout=timeout, output=output, began=began)
