"""Code that is sent to other hosts: the question before a large amount, and the progress."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from tfcluster.cli.output import confirm, echo
from tfcluster.errors import ClusterError, usage_error

if TYPE_CHECKING:
    from tfcluster.ui.progress_views import SendingView


def approve_code(description: str, *, yes: bool) -> None:
    """Ask, unless `yes` is set, whether to send a large amount of code; raise a ClusterError if the user refuses."""
    if yes:
        echo(description, err=True)
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise usage_error(
            f"{description}: that is a large amount of code to send",
            "List the files that the script does not use in .tfclusterignore, or send it anyway with --yes.",
        )
    elif not confirm(f"{description}\nSend it?"):
        raise ClusterError("nothing was sent", hint=".tfclusterignore names files to leave out, as .gitignore does.")


def show_sending(host: str, size: int, remaining_bytes: int) -> None:
    """Show on a terminal how much of the code has been sent, if that takes over a second."""
    _sending_view().update(host, size, remaining_bytes)


@cache
def _sending_view() -> SendingView:
    from tfcluster.ui.progress_views import SendingView  # most runs send nothing

    return SendingView()
