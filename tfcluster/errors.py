"""The one error class whose message reaches the user, and the exit codes that the commands promise."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """What the exit code of a command says; a contract with scripts."""

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
    """Raised in the main thread of a run's program by SIGTERM, past every `except Exception` of a script."""


class ClusterError(Exception):
    """A failure told to the user as it stands: what happened and where, what to type next, the exit code.

    Args:
        message: What happened and where (file:line:column, host, task); may have several lines.
        hint: What to type or change next; empty when there is nothing useful to say.
        exit_code: The exit code of the command that fails with it.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def to_json(self) -> dict[str, Any]:
        """The error as it travels from an agent to the command line."""
        return {"message": self.message, "hint": self.hint, "exit_code": int(self.exit_code)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ClusterError:
        """The error that `to_json` described."""
        return cls(value["message"], hint=value["hint"], exit_code=ExitCode(value["exit_code"]))
