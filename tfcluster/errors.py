"""The error class whose message is shown to the user, and the exit codes of the commands."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """The exit codes of the commands; scripts rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    UNHEALTHY = 4
    UNREACHABLE = 5
    TIMED_OUT = 124
    INTERRUPTED = 130
    TERMINATED = 143


class TerminatedError(BaseException):
    """Raised by SIGTERM in the main thread of a run's program; no `except Exception` of a script catches it."""


class ClusterError(Exception):
    """An error that is shown to the user as it is; its hint says what to type or change next, if anything.

    The message says what happened and where (file:line:column, host, task), in one or several lines.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        """Return the message with the hint, as a traceback in a program that uses `connect` shows it."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def to_json(self) -> dict[str, Any]:
        """Return the error as an agent sends it to the command line."""
        return {"message": self.message, "hint": self.hint, "exit_code": int(self.exit_code)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ClusterError:
        """Return the error that `to_json` encoded."""
        return cls(value["message"], hint=value["hint"], exit_code=ExitCode(value["exit_code"]))


def usage_error(message: str, hint: str = "") -> ClusterError:
    """Return the error for a mistake of the user's, for which a command exits with 2."""
    return ClusterError(message, hint=hint, exit_code=ExitCode.USAGE)
