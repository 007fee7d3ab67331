"""The command `tfcluster run pi`."""

from __future__ import annotations

from typing import Any

import click

from tfcluster.cli.options import WholeNumber
from tfcluster.cli.run.common import CONTEXT, seed_or_new, shared_options, submit


@click.command(
    "pi",
    context_settings=CONTEXT,
    short_help="Pi from random points, counted on all devices.",
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
@shared_options
def command(samples: int, seed: int | None, **shared: Any) -> int:
    """Estimate pi by counting random points inside the quarter circle, on the tasks' devices.

    The count depends on the seed and the number of points alone, not on the devices that share the work.
    """
    return submit("pi", {"samples": samples, "seed": seed_or_new(seed)}, **shared)
