"""The question before much code is sent to other hosts."""

from __future__ import annotations

import sys

from tfcluster.cli.output import confirm, echo


def approve_code(description: str, *, yes: bool) -> None:
    """Ask whether much code is to be sent.

    Args:
        description: What is to be sent.
        yes: Do not ask.

    Raises:
        ClusterError: The user refuses, or cannot be asked.
    """
    from tfcluster.errors import ClusterError, ExitCode

    if yes:
        echo(description, err=True)
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ClusterError(
            f"{description}: that is much code to send",
            hint="Name what the script does not need in .tfclusterignore, or send it anyway with --yes.",
            exit_code=ExitCode.USAGE,
        )
    elif not confirm(f"{description}\nSend it?"):
        raise ClusterError("nothing was sent", hint=".tfclusterignore names files to leave out, as .gitignore does.")
