"""The stories of docs/architecture.md: the functions that they name, and the calls that lead to them in a trace."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tfcluster

ROOT = Path(tfcluster.__file__).parent
TEXT = (ROOT.parent / "docs" / "architecture.md").read_text()

#: The path of a module in the package, and the first line of a function in it.
Function = tuple[str, int]


@dataclass(frozen=True)
class Story:
    """A section of docs/architecture.md.

    Attributes:
        title: Its heading.
        steps: The functions that it names, in their order, as PATH:NAME.
        max_calls: The length that it claims, in calls; None if it claims none.
        max_modules: The number of modules that it claims.
    """

    title: str
    steps: tuple[str, ...]
    max_calls: int | None
    max_modules: int | None


@functools.cache
def read_stories() -> dict[str, Story]:
    """Return the stories of docs/architecture.md, by their titles."""
    return {
        title: Story(title, tuple(re.findall(r"`([\w/]+\.py:[\w.]+)`", text)), *_claim(text))
        for title, text in re.findall(r"^### ([^\n]*)\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL)
    }


def _claim(text: str) -> tuple[int | None, int | None]:
    found = re.search(r"At most (\d+) calls in (\d+) modules", " ".join(text.split()))
    return (int(found[1]), int(found[2])) if found else (None, None)


@functools.cache
def functions_in(path: str) -> dict[str, int]:
    """Return the first lines of the functions, methods and classes of a module, by their names (CLASS.METHOD)."""
    return dict(_walk(ast.parse((ROOT / path).read_text()).body, ""))


def _walk(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, int]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            # The code of a decorated function begins with its first decorator.
            yield prefix + node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield from _walk(node.body, f"{prefix}{node.name}.")


def function_of(step: str) -> Function:
    """Return the function that a step names."""
    path, _, name = step.partition(":")
    return path, functions_in(path)[name]


def name_of(function: Function) -> str:
    """Return PATH:NAME of a function."""
    path, line = function
    return f"{path}:{next((name for name, first in functions_in(path).items() if first == line), line)}"


@dataclass(frozen=True)
class Call:
    """A recorded call.

    Attributes:
        time: When it began, in monotonic seconds.
        calls: The function and those that have called it, from the outermost one in its thread.
    """

    time: float
    calls: tuple[Function, ...]


def read_trace(file: Path, start: int, end: int | None = None) -> list[Call]:
    """Return the calls that are recorded between two offsets of a file, in the order of their times."""
    records = [json.loads(line) for line in file.read_bytes()[start:end].splitlines()]
    calls = [Call(each["time"], tuple((path, line) for path, line in each["calls"])) for each in records]
    return sorted(calls, key=lambda call: call.time)


def follow(steps: Iterable[str], trace: Iterable[Call]) -> tuple[set[Function], str | None]:
    """Find the steps of a story in a trace, each after the one before it.

    Returns:
        The functions that were called for it: the steps and their callers. And the first step that was not called
        after the one before it, or None.
    """
    found: set[Function] = set()
    remaining = iter(trace)
    for step in steps:
        function = function_of(step)
        call = next((each for each in remaining if each.calls[-1] == function), None)
        if call is None:
            return found, step
        found.update(call.calls)
    return found, None
