"""What a script takes over from the command that runs it, so that it runs as a child process of the command would."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Caller:
    """The process that called `tfcluster run SCRIPT` on the machine on which the script runs.

    Attributes:
        environment: The environment variables, which may be secret: they are sent, and written to no file.
        umask: The mask of the permissions of new files.
        stdin: The name, in the abstract namespace, of the Unix socket that hands the standard input over; None if the
            script has none.
    """

    environment: dict[str, str] = field(repr=False)
    umask: int
    stdin: str | None


@dataclass(frozen=True)
class OutputStreams:
    """The standard output and standard error of a script.

    Attributes:
        stdout_is_terminal: Standard output is a terminal.
        stderr_is_terminal: Standard error is a terminal.
        is_shared: Both are the same terminal, pipe or file, so that the order of what is written to them is kept.
        columns: The width of the terminal.
        lines: The height of the terminal.
    """

    stdout_is_terminal: bool = False
    stderr_is_terminal: bool = False
    is_shared: bool = False
    columns: int = 80
    lines: int = 24
