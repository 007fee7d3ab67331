"""The command group `tfcluster run`, with one subcommand module for each program."""

from __future__ import annotations

import click

from tfcluster.cli.lazy_group import LazyGroup

# The short help of each program, by name; the module has the same name.
_PROGRAMS = {
    "graph": "A graph of constants, split over the tasks.",
    "pi": "Pi from random points, counted on all devices.",
    "mean": "Mean and variance of the numbers in a file, in slices of any sizes.",
    "linear": "A line fitted by all workers at once, its parameters on the ps.",
    "expfit": "Learns e^x: on one task, or its data or its layers divided.",
    "script": "Your own script: `tfcluster run [OPTIONS] train.py ARGS`.",
}


class _Programs(LazyGroup):
    """The group of the programs; an argument that is a file's path is run as a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does, after inserting `script` before a script's path and the options before it."""
        first = next((word for word in args if word in _PROGRAMS or _is_path(word)), "")
        if args and args[0].startswith("-") and first in _PROGRAMS:
            raise click.UsageError(f"The options of a program stand behind it: {ctx.command_path} {first} ...", ctx)
        if args and args[0] not in ctx.help_option_names and (args[0].startswith("-") or _is_path(args[0])):
            args = ["script", *args]
        return super().parse_args(ctx, args)


def _is_path(word: str) -> bool:
    return word.endswith(".py") or "/" in word


@click.group(
    "run",
    cls=_Programs,
    package="tfcluster.cli.run",
    commands=_PROGRAMS,
    short_help="Run a program on the cluster.",
    epilog="Example: tfcluster run pi --samples 1e7 --gpus 4",
)
def command() -> None:
    """Run PROGRAM, or a script of your own, on the cluster that is up, and show its progress and result.

    It runs beside the cluster: Ctrl-C cancels it and leaves the cluster as it was.
    """
