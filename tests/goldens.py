"""Whole outputs that tests compare with files in tests/golden, which `pytest --update` rewrites."""

from __future__ import annotations

import difflib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "golden"
COLUMNS = 160  # of JSON


class Update:
    """Whether `golden` rewrites the files; `--update` says so."""

    is_on = False


def golden(name: str, text: str) -> None:
    """Compare an output with a file, without the blanks that end its lines; fail with the difference.

    The file names the output: tests/test_goldens.py finds files that no test names.
    """
    shown = _shown(text)
    path = FOLDER / name
    if Update.is_on:
        path.write_text(shown)
        return
    if not path.exists():
        pytest.fail(f"there is no tests/golden/{name}: `pytest --update` writes it")
    if (known := path.read_text()) != shown:
        lines = difflib.unified_diff(known.splitlines(), shown.splitlines(), f"tests/golden/{name}", "now", lineterm="")
        pytest.fail("\n".join([*lines, "`pytest --update` accepts this"]), pytrace=False)


def _shown(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def golden_json(name: str, value: Any) -> None:
    """Compare a value with a file of JSON, in which a list or object that fits is one line."""
    golden(name, "\n".join(_lines(value)))


def _lines(value: Any, indent: str = "", start: str = "") -> list[str]:
    """Return JSON in lines that are no longer than they must be."""
    whole = f"{indent}{start}{json.dumps(value)}"
    if len(whole) <= COLUMNS or not value or not isinstance(value, (dict, list)):
        return [whole]
    if isinstance(value, dict):
        brackets, parts = "{}", [_lines(each, f"{indent}  ", f"{json.dumps(key)}: ") for key, each in value.items()]
    else:
        brackets, parts = "[]", [_lines(each, f"{indent}  ") for each in value]
    for part in parts[:-1]:
        part[-1] += ","
    return [f"{indent}{start}{brackets[0]}", *itertools.chain.from_iterable(parts), f"{indent}{brackets[1]}"]


def is_golden(name: str, text: str) -> bool:
    """Return whether a file has an output, or would get it."""
    return Update.is_on or (FOLDER / name).read_text() == _shown(text)
