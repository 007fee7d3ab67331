"""The options of `tfcluster run mean`."""

from __future__ import annotations

import os
import stat
from typing import Any

import click

from tfcluster.cli.options import InputFile, WholeNumber
from tfcluster.programs import settings
from tfcluster.programs.api import SharedOptions, Submission


class _Sizes(WholeNumber):
    """A parameter type for comma-separated sizes, or one of the words `even` and `devices`."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in ("even", "devices"):
            return value
        return [WholeNumber.convert(self, size.strip(), param, ctx) for size in value.split(",")]


@click.command(
    epilog="Example: tfcluster run mean numbers.npy --slices 10,30,961",
)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--random",
    type=WholeNumber(1, settings.MEAN_RANDOM_NUMBERS_MAX),
    metavar="N",
    help="Generate N random numbers, uniform in [0, 1), instead of reading a file.",
)
@click.option("--column", metavar="INDEX|NAME", help="The column of a CSV file, by its index from 0 on or by its name.")
@click.option(
    "--slices",
    type=_Sizes(1, 2**62),
    default="even",
    show_default=True,
    metavar="N,N,…|even|devices",
    help="Slice sizes, such as 10,30,961; even: one slice for each device, of about equal size; "
    "devices: one for each device, with as many numbers as it processed.",
)
def command(
    shared: SharedOptions, file: str | None, random: int | None, column: str | None, slices: list[int] | str
) -> Submission:
    """Compute the mean and the population's variance of the numbers in FILE, which the tasks' devices share in slices.

    FILE is a .npy array of any shape and type of real numbers, text with one number a line, or a CSV file
    with --column; - is standard input. Tasks on this machine map a .npy file, which can be larger than the memory; sums
    are in float64. The result depends on the numbers alone, not on the slices or the devices that share the work.
    """
    if (file is None) == (random is None):
        raise click.UsageError("Give either FILE (- for standard input) or --random N.")
    parameters = {"random": random, "seed": shared.seed_or_random(), "column": column, "slices": slices}
    if file is None:
        return Submission({**parameters, "file": None})
    if file == "-" or not stat.S_ISREG(os.stat(file).st_mode):  # tasks cannot map the data of a pipe into memory
        source = InputFile().convert(file, None, click.get_current_context())
        return Submission({**parameters, "file": file}, upload=source)
    return Submission({**parameters, "file": os.path.abspath(file)})
