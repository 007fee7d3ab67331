"""The commands of programs with their own options, without those that every run has."""

from __future__ import annotations

import click

from tfcluster.core.programs import SCRIPT


def own_command(name: str) -> click.Command:
    """Return the command of a program with its own options."""
    if name == SCRIPT:
        from tfcluster.cli import script

        return script.command
    from tfcluster.programs import load

    command: click.Command = load(name).command()
    return command
