"""The options of `tfcluster run pi`."""

from __future__ import annotations

import click

from tfcluster.cli.options import WholeNumber
from tfcluster.programs.api import SharedOptions, Submission


@click.command(
    epilog="Example: tfcluster run pi --samples 1e9 --seed 7 --devices '/job:worker/task:*'",
)
@click.option(
    "--samples",
    type=WholeNumber(1, 2**54),
    default="1e7",
    show_default=True,
    metavar="N",
    help="How many points to make.",
)
def command(shared: SharedOptions, samples: int) -> Submission:
    """Estimate pi by counting random points inside the quarter circle, on the tasks' devices.

    The count depends on the seed and the number of points alone, not on the devices that share the work. Few points are
    counted on some of the devices only, unless --devices or --gpus asks for more.
    """
    return Submission({"samples": samples, "seed": shared.seed_or_random()})
