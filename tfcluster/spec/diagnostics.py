"""What is wrong in a spec and where: one line per problem, all of them in one error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfcluster.errors import ClusterError, ExitCode

KeyPath = tuple[str | int, ...]
"""The way from the top of a spec to one of its values: keys, and indices of lists."""

_LONGEST_TEXT = 60


class Position(NamedTuple):
    """A place in a text; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Date:
    """A scalar that YAML takes for a date; no key of a spec wants one."""

    text: str


@dataclass(frozen=True)
class Diagnostic:
    """One thing that is wrong in a spec.

    Attributes:
        file: The file as the user named it.
        line: Where the problem is, from 1.
        column: Where in the line it is, from 1.
        message: The key and what is wrong with its value.
        hint: What to write instead; empty when there is nothing useful to say.
    """

    file: str
    line: int
    column: int
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        return _on_one_line(f"{self.file}:{self.line}:{self.column}: {text}")


def to_error(problems: Iterable[Diagnostic]) -> ClusterError:
    """The error that lists the problems, each once, in the order of the file."""
    ordered = sorted(set(problems), key=lambda problem: (problem.line, problem.column, problem.message))
    return ClusterError("\n".join(map(str, ordered)), exit_code=ExitCode.USAGE)


def format_path(path: KeyPath) -> str:
    """The path as people write it: `jobs.ps.tasks[0]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{shorten(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def describe(value: Any, text: str | None = None) -> str:
    """What a value is, in plain words.

    Args:
        value: The value as YAML reads it.
        text: The value as the file spells it, where that is known.
    """
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
    """The text, cut where it would fill the user's screen."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
