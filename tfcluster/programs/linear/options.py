"""The options of `tfcluster run linear`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import click

from tfcluster.cli.options import FiniteFloat, InputFile, WholeNumber, seconds
from tfcluster.programs import settings
from tfcluster.programs.api import SharedOptions, Submission


@click.command(
    epilog="Example: tfcluster run linear --steps 1e5 --logdir /tmp/linear --seed 4",
)
@click.option(
    "--data",
    type=InputFile(),
    metavar="FILE.csv",
    help="Columns x and y to fit. Default: 101 points around y = 2x + 0.2, made from the seed.",
)
@click.option(
    "--steps",
    type=WholeNumber(1, 10**15),
    show_default=f"{settings.TRAINING_STEPS}",
    help="Steps of all workers together.",
)
@click.option("--epochs", type=WholeNumber(1, 10**9), help="How often to go through the data, instead of --steps.")
@click.option(
    "--batch",
    type=WholeNumber(1, 10**7),
    default="128",
    show_default=True,
    help="Examples per step; all of the data if it has fewer.",
)
@click.option(
    "--optimizer",
    type=click.Choice(["adagrad", "sgd", "momentum", "adam"]),
    default="adagrad",
    show_default=True,
    help="Applies the gradients on the ps.",
)
@click.option(
    "--lr",
    type=FiniteFloat(0, min_open=True, max=1e6),
    help="Learning rate. Default: 0.8 for adagrad, 0.05 for momentum, 0.1 for the others.",
)
@click.option("--sync", is_flag=True, help="Workers share each step's batch and their gradients are averaged.")
@click.option(
    "--logdir",
    type=click.Path(),
    metavar="FOLDER",
    help="Folder on the head task's host for checkpoints, from which the next run resumes (with their seed), and for "
    "TensorBoard summaries.",
)
@click.option(
    "--checkpoint-every", type=seconds(0.1), default=30.0, show_default=True, help="Seconds between checkpoints."
)
def command(
    shared: SharedOptions,
    data: BinaryIO | None,
    steps: int | None,
    epochs: int | None,
    batch: int,
    optimizer: str,
    lr: float | None,
    sync: bool,
    logdir: str | None,
    checkpoint_every: float,
) -> Submission:
    """Fit y = w x + b by gradient descent: w and b are on the parameter servers, every worker trains.

    Workers train asynchronously, each at its own speed, unless --sync is given. If a worker is lost, its steps in
    progress are lost; if a parameter server is lost, the steps since the last snapshot (one second) or checkpoint are
    lost.
    """
    if steps is not None and epochs is not None:
        raise click.UsageError("--steps and --epochs both set the length of the training: give only one")
    parameters = {
        "data": "" if data is None else data.name,
        "steps": steps or settings.TRAINING_STEPS,
        "epochs": epochs,
        "batch": batch,
        "optimizer": optimizer,
        "lr": lr,
        "sync": sync,
        # Make the path absolute, as the run has another working directory.
        "logdir": None if logdir is None else str(Path(os.path.expanduser(logdir)).absolute()),
        "checkpoint_every": checkpoint_every,
        "seed": shared.seed,
    }
    return Submission(parameters, upload=data, upload_name="data.csv")
