"""What docs/architecture.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import tfcluster

ROOT = Path(tfcluster.__file__).parent
TEXT = (ROOT.parent / "docs" / "architecture.md").read_text()
CALLS = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", TEXT)))


def names_in(path: Path) -> set[str]:
    """Return the functions and classes of a module, and the methods as CLASS.METHOD."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
    return names


def test_calls_are_named() -> None:
    assert len(CALLS) > 30


def test_every_step_of_a_story_exists() -> None:
    names = {path: names_in(ROOT / path) for path, _ in CALLS}
    assert [f"{path}:{name}" for path, name in CALLS if name not in names[path]] == []


def test_every_folder_is_described() -> None:
    described = set(re.findall(r"^\| `([\w/]+)/` \|", TEXT, re.MULTILINE))
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/__init__.py")}
    in_the_row_of_their_parent = {"protocol/api", "ui/top", "dashboard/page"}
    programs = {folder for folder in folders if folder.startswith("programs/")}
    assert described == folders - in_the_row_of_their_parent - programs
