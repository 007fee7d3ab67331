"""Text: plurals, sizes, long lists, messages of TensorFlow, regular expressions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence

from tfcluster import settings
from tfcluster.errors import usage_error

_FORWARDED = re.compile(r"From /job:\S+:\s*(\n|$)")


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun in the singular or plural (by default with an s): 1 task, 3 tasks."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def summarize_list(names: Sequence[str]) -> str:
    """Return the first four names, and the number of the others."""
    more = f" and {len(names) - settings.LISTED_NAMES} more" if len(names) > settings.LISTED_NAMES else ""
    return ", ".join(names[: settings.LISTED_NAMES]) + more


def group_problems(problems: Iterable[str]) -> list[str]:
    """Name tasks with the same problem together; each problem begins with the name of its task."""
    tasks: dict[str, list[str]] = {}
    for problem in problems:
        task, _, rest = problem.partition(" ")
        tasks.setdefault(rest, []).append(task)
    return [
        f"{summarize_list(sorted(names, key=_by_number))} {rest if len(names) == 1 else _to_plural(rest)}"
        for rest, names in tasks.items()
    ]


def _by_number(name: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def join_problems(problems: Iterable[str]) -> str:
    """Return problems of tasks in one line, grouped as by `group_problems`."""
    return "; ".join(group_problems(problems))


def _to_plural(predicate: str) -> str:
    """Return what is said of one task for several of them; a reason in parentheses stays as it is."""
    plural = {"is": "are", "was": "were", "has": "have", "does": "do", "its": "their"}
    return re.sub(r"\(.*?\)|\w+", lambda match: plural.get(match[0], match[0]), predicate)


def format_size(size: int) -> str:
    """Format a number of bytes in the largest fitting binary unit: 97 MiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if round(value) < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def strip_forwarding(message: str) -> str:
    """Return a message of TensorFlow without the lines that only name the task that forwarded another task's error."""
    return _FORWARDED.sub("", message)


# Before the first of the errors that TensorFlow numbers if there are several.
_SEVERAL = re.compile(r"^\d+ root error\(s\) found\.\n\s*\(0\) (\w+:)\s+", re.MULTILINE)
# A file that is read or written, and the files of a checkpoint.
_NOT_FOUND = re.compile(
    r"(?<!\S)([^\s/;]\S*); No such file or directory|Failed to find any matching files for ([^\s/]\S*)"
)
# In place of where an operation was defined.
_NO_STACK = "<stack traces unavailable>"
# Before the name of an exception class, and before its message: no reader of an error needs them.
_OF_TENSORFLOW = re.compile(r"\btensorflow\.python\.(?:\w+\.)+(?=[A-Z])|\{\{function_node \S+\}\} ")


def summarize_error(message: str) -> str:
    """Return the first line of an error that says something, after the lines that only announce it with a colon.

    TensorFlow puts an empty line, and where the operation was defined, between `Graph execution error:` and the cause;
    and a line of `=` if several tasks have failed.
    """
    text = _SEVERAL.sub(r"\1 ", strip_forwarding(message))
    lines = [line.strip() for line in text.strip().splitlines() if line[:1].strip()]
    lines = [line for line in lines if not line.startswith(("Detected at node", _NO_STACK)) and line.strip("=")]
    end = next((number for number, line in enumerate(lines) if not line.endswith(":")), len(lines) - 1)
    return _OF_TENSORFLOW.sub("", " ".join(lines[: end + 1]).removesuffix(":"))


def missing_path(error: str) -> str:
    """Return the relative path that TensorFlow has not found, as its error says; empty if there is none."""
    found = _NOT_FOUND.search(error)
    return (found[1] or found[2]) if found else ""


def compile_patterns(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """Compile regular expressions; raise ClusterError for an invalid one."""
    expressions = []
    for pattern in patterns:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what a later Python may understand differently
                expressions.append(re.compile(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            hint = r"A special character requires a backslash: \(, \[, \*, \+, \?."
            raise usage_error(f"{pattern!r} is not a regular expression: {error}", hint) from None
    return expressions
