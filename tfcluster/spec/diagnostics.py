"""Diagnostics of a spec: the problems with file, line and column, combined in one error with one line per problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfcluster import settings
from tfcluster.control_characters import escape_to_one_line
from tfcluster.errors import ClusterError, ExitCode

KeyPath = tuple[str | int, ...]
"""The way from the top of a spec to one of its values: keys, and indices of lists."""


class Position(NamedTuple):
    """A position in a text; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Date:
    """A scalar that YAML resolves to a date; no key of a spec accepts dates."""

    text: str


@dataclass(frozen=True)
class Diagnostic:
    """One problem of a spec, with its position."""

    file: str  # as the user named it
    line: int  # from 1
    column: int  # from 1
    message: str  # the key and what is wrong with its value
    hint: str = ""  # what to write instead; empty if there is no useful hint

    def __str__(self) -> str:
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        return escape_to_one_line(f"{self.file}:{self.line}:{self.column}: {text}")


def to_error(problems: Iterable[Diagnostic]) -> ClusterError:
    """Return an error that lists the problems without duplicates, in the order of their positions in the file."""
    ordered = sorted(set(problems), key=lambda problem: (problem.line, problem.column, problem.message))
    return ClusterError("\n".join(map(str, ordered)), exit_code=ExitCode.USAGE)


def format_path(path: KeyPath) -> str:
    """Format a path for messages, such as `jobs.ps.tasks[0]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{shorten(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def describe(value: Any, text: str | None = None) -> str:
    """Describe a value for error messages: as `text`, its spelling in the file, if that is known."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {shorten(value)!r}"
    if isinstance(value, Date):
        return f"the date {shorten(value.text)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, dict):
        return "keys and values" if value else "an empty mapping"
    return shorten(str(value) if text is None else text)


def shorten(text: str) -> str:
    """Return the text, truncated with an ellipsis if it is longer than 60 characters."""
    return text if len(text) <= settings.ERROR_VALUE_MAX_CHARS else f"{text[: settings.ERROR_VALUE_MAX_CHARS - 1]}…"
