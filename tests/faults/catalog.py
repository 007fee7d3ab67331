"""The deliberate faults of faults.toml, and the check that they still fit the product and its tests."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import requirements


@dataclass(frozen=True)
class Fault:
    """A mistake in one file of the product, and the tests that find it."""

    name: str
    promise: str  # what no longer holds, in one sentence
    file: str
    old: str  # occurs once in the file
    new: str
    tests: tuple[str, ...]  # test files or node ids, the fastest that find it
    needs: tuple[str, ...] = ()  # what its tests need of the machine, by the names of tests/requirements.py

    def apply(self, tree: Path) -> Callable[[], None]:
        """Apply the fault to a copy of the tree, and return what takes it back."""
        path = tree / self.file
        text = path.read_text()
        _write(path, text.replace(self.old, self.new))
        return lambda: _write(path, text)

    def problems(self, tree: Path) -> Iterator[str]:
        """Yield why the fault or its tests do not fit a tree."""
        path = tree / self.file
        text = path.read_text() if path.exists() else ""
        if (count := text.count(self.old)) != 1:
            sources = sorted((tree / "tfcluster").rglob("*.py"))
            places = [str(source.relative_to(tree)) for source in sources if self.old in source.read_text()]
            yield f"its code is {count} times in {self.file}; files that have it: {places}"
        elif path.suffix == ".py":
            try:
                ast.parse(text.replace(self.old, self.new))
            except SyntaxError as error:
                yield f"with it, {self.file} is not Python: {error}"
        for test in self.tests:
            file, *names = test.partition("[")[0].split("::")
            if not (tree / file).exists() or not _names_in(tree / file).issuperset(names):
                yield f"there is no test {test}"
        if unknown := sorted({*self.needs} - requirements.NEEDS.keys()):
            yield f"tests/requirements.py has no {', '.join(unknown)}"


def _write(path: Path, text: str) -> None:
    """Write a source file, and remove the compiled one: Python uses one whose source had the same second and size."""
    path.write_text(text)
    Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


@functools.cache
def _names_in(path: Path) -> set[str]:
    """Return the names of the functions and classes of a file of tests."""
    return {*re.findall(r"^ *(?:async )?(?:def|class) (\w+)", path.read_text(), re.MULTILINE)}


def load_faults(file: Path) -> list[Fault]:
    """Read all faults."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(file.read_text())
    lists = ("tests", "needs")
    return [
        Fault(name, **{**table, **{key: tuple(table[key]) for key in lists if key in table}})
        for name, table in tables.items()
    ]


def find_problems(faults: Iterable[Fault], tree: Path) -> list[str]:
    """Return a line for each fault that does not fit a tree any more, with its name."""
    return [f"{fault.name}: {problem}" for fault in faults for problem in fault.problems(tree)]


def sample(faults: Sequence[Fault], count: int, commit: str) -> list[Fault]:
    """Choose faults: always the same ones for a commit, and other ones for the next."""
    return sorted(faults, key=lambda fault: hashlib.sha256(f"{commit} {fault.name}".encode()).digest())[:count]
