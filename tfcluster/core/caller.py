"""The state of the command that a script inherits, so that it runs as a child process of the command would."""

from __future__ import annotations

from dataclasses import field

from tfcluster.records import record_class


@record_class(frozen=True)
class Caller:
    """The process that called `tfcluster run SCRIPT` on the machine on which the script runs."""

    environment: dict[str, str] = field(repr=False)  # may be secret: sent, and written to no file
    umask: int
    stdin: str | None  # the name, in the abstract namespace, of the Unix socket that hands it over; None if it has none


@record_class(frozen=True)
class OutputStreams:
    """The standard output and standard error of a script."""

    stdout_is_terminal: bool = False
    stderr_is_terminal: bool = False
    is_shared: bool = False  # both are the same terminal, pipe or file, so that the order of what is written is kept
    columns: int = 80  # the width of the terminal
    lines: int = 24  # the height of the terminal
