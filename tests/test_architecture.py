"""What docs/architecture.md names exists."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import tfcluster

ROOT = Path(tfcluster.__file__).parent
TEXT = (ROOT.parent / "docs" / "architecture.md").read_text()


def steps_of_stories() -> list[str]:
    """Return the functions that the stories name, as PATH:NAME, each once."""
    return sorted(set(re.findall(r"`([\w/]+\.py:[\w.]+)`", TEXT)))


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


STEPS = steps_of_stories()


def test_every_step_of_a_story_exists() -> None:
    assert len(STEPS) > 100
    assert [step for step in STEPS if step.partition(":")[2] not in functions_in(step.partition(":")[0])] == []


def test_every_folder_is_described() -> None:
    described = set(re.findall(r"^\| `([\w/]+)/` \|", TEXT, re.MULTILINE))
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/__init__.py")}
    in_the_row_of_their_parent = {"protocol/api", "ui/top", "dashboard/page"}
    programs = {folder for folder in folders if folder.startswith("programs/")}
    assert described == folders - in_the_row_of_their_parent - programs


def test_the_tests_that_the_threat_model_names_exist() -> None:
    tests = ROOT.parent / "tests"
    rows = (ROOT.parent / "docs" / "network.md").read_text().partition("## Who could attack")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+/test_\w+\.py)`(?: \(([^)]+)\))?", rows)
    assert len(named) > 20
    for file, functions in named:
        text = (tests / file).read_text()
        for function in re.findall(r"`(test_\w+)…?`", functions):
            assert f"def {function}" in text, f"{file}: {function}"
