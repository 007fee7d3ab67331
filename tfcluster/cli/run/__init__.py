"""`tfcluster run`: a group with a command, in a file of its own, for each program."""

from __future__ import annotations

import click

from tfcluster.cli.lazy import LazyGroup

# Name -> what the list of programs says; the file has the same name.
_PROGRAMS = {
    "pi": "Pi from random points, counted on all devices.",
}


@click.group(
    "run",
    cls=LazyGroup,
    package="tfcluster.cli.run",
    commands=_PROGRAMS,
    short_help="Run a program on the cluster.",
    epilog="Example: tfcluster run pi --samples 1e7 --gpus 4",
)
def command() -> None:
    """Run PROGRAM on the cluster that is up, and show its progress and result.

    It runs beside the cluster: Ctrl-C cancels it and leaves the cluster as it was.
    """
