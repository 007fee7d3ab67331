"""The command `tfcluster run SCRIPT.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import click

from tfcluster.cli.run.common import CONTEXT, shared_options, submit


@click.command(
    "script",
    # All arguments after the script's path belong to the script.
    context_settings={**CONTEXT, "ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Your own script: `tfcluster run [OPTIONS] train.py ARGS`.",
    epilog="Example: tfcluster run script --timeout 600 train.py --epochs 3",
)
@click.argument("script", type=click.File("rb"), metavar="SCRIPT.py")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@shared_options
def command(script: BinaryIO, args: tuple[str, ...], seed: int | None, **shared: Any) -> int:
    """Run your own Python script beside the cluster, with TensorFlow imported already; show what it prints.

    It finds the cluster in TF_CONFIG, where it is the chief, and as a session's target in TFCLUSTER_MASTER;
    TFCLUSTER_RUN is the run's id, TFCLUSTER_DEVICES its devices, TFCLUSTER_SEED the seed if one was given.
    The word `script` can be left out: tfcluster run train.py --epochs 3
    """
    path = os.path.abspath(script.name)
    parameters = {"args": list(args), "path": path, "cwd": os.getcwd(), "seed": seed}
    return submit("script", parameters, sent=script, sent_as=Path(path).name, **shared)
