"""The options of `tfcluster run SCRIPT.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import click

from tfcluster.cli.completion import complete_files
from tfcluster.cli.options import InputFile
from tfcluster.programs.api import SharedOptions, Submission


@click.command(
    # All arguments after the script's path belong to the script.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: tfcluster run script --timeout 600 train.py --epochs 3",
)
@click.argument("script", type=InputFile(), metavar="SCRIPT.py")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
def command(shared: SharedOptions, script: BinaryIO, args: tuple[str, ...]) -> Submission:
    """Run your own Python script beside the cluster, as `python SCRIPT.py` would run it, and exit as it does.

    It finds the cluster in TF_CONFIG, where it is the chief, and as a session's target in TFCLUSTER_MASTER;
    TFCLUSTER_RUN is the run's id, TFCLUSTER_DEVICES its devices, TFCLUSTER_SEED the seed if one was given.
    The word `script` can be left out: tfcluster run train.py --epochs 3
    """
    folder = os.getcwd()
    path = os.path.join(folder, script.name)  # not made shorter: python puts it into __file__ in this way too
    parameters = {"args": list(args), "path": path, "argument": script.name, "cwd": folder, "seed": shared.seed}
    return Submission(parameters, upload=script, upload_name=Path(path).name)
