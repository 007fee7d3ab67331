"""What commands print besides tables: text with its control characters escaped, JSON, and errors."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import click

from tfcluster.control_characters import escape_control_characters
from tfcluster.errors import ClusterError


def echo(text: str, *, err: bool = False) -> None:
    """Print a line.

    Args:
        text: The line.
        err: On standard error.
    """
    click.echo(escape_control_characters(text), err=err)


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON, in which all but printable ASCII is escaped."""
    click.echo(json.dumps(value))


def confirm(question: str) -> bool:
    """Ask a question on standard error that is answered with yes or no."""
    return click.confirm(escape_control_characters(question), err=True)


def echo_error(error: ClusterError) -> None:
    """Print an error and its hint on standard error."""
    # As rich decides it, which is not imported for this.
    colour = bool(os.environ.get("FORCE_COLOR")) or (sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
    label = click.style("error: ", fg="red", bold=True)
    click.echo(label + escape_control_characters(error.message), err=True, color=colour)
    if error.hint:
        echo(f"hint: {error.hint}", err=True)


def echo_usage_error(error: click.ClickException) -> None:
    """Print what click says of a command that was typed wrongly, with what was typed in it."""
    shown = _TerminalText()
    error.show(file=shown)
    echo(shown.getvalue().removesuffix("\n"), err=True)


class _TerminalText(io.StringIO):
    """Collects text. It passes for a terminal: else click would take escape sequences out before they are seen."""

    def isatty(self) -> bool:
        return True
