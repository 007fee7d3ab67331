"""Every module is used, has short functions, and is in no circle of imports; test_layers.py has the rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import tfcluster
from tests.test_layers import all_imports
from tfcluster.core.programs import BUNDLED

PACKAGE = Path(tfcluster.__file__).parent
MAX_FUNCTION_LINES = 50
#: Modules that nothing imports: `python -m` starts the first, and the bootstrap program on a host the second.
ENTRY_POINTS = {"tfcluster.__main__", "tfcluster.transport.remote.install"}
#: The modules of bundled programs, which are imported by their names.
PROGRAMS = {f"tfcluster.programs.{name}" for name in BUNDLED}


def name_of(path: Path, package: Path) -> str:
    """Return the full name of the module in a file of a package."""
    relative = path.relative_to(package.parent).with_suffix("")
    return ".".join(relative.parts).removesuffix(".__init__")


def modules_in(package: Path) -> dict[str, Path]:
    """Return the files of a package's modules by the modules' full names."""
    return {name_of(path, package): path for path in sorted(package.rglob("*.py"))}


def circles_in(imports: Mapping[str, set[str]]) -> list[str]:
    """Return a circle of imports among the modules that are in one or import one; empty if there is none."""
    remaining = {name: set(imported) for name, imported in imports.items()}
    while free := [name for name, imported in remaining.items() if not imported & remaining.keys()]:
        for name in free:
            del remaining[name]
    if not remaining:
        return []
    circle = [min(remaining)]
    while circle[-1] not in circle[:-1]:
        circle.append(min(remaining[circle[-1]] & remaining.keys()))
    return circle[circle.index(circle[-1]) :]


def long_functions_in(path: Path) -> Iterator[str]:
    """Yield the functions of a module that have too many lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length_of(node) > MAX_FUNCTION_LINES:
            declares_options = path.stem in BUNDLED and node.name == "command"
            if not declares_options:
                yield node.name


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from `def` on, without its decorators."""
    return (function.end_lineno or 0) - function.lineno + 1


MODULES = modules_in(PACKAGE)


def imports_by_module() -> dict[str, set[str]]:
    """Return what each module imports of the package, at any depth and for the type checker, too."""
    found: dict[str, set[str]] = {name: set() for name in MODULES}
    for each in all_imports():
        found[name_of(PACKAGE / each.at.partition(":")[0], PACKAGE)].update({each.module} & MODULES.keys())
    return found


def test_no_two_modules_import_each_other() -> None:
    assert circles_in(imports_by_module()) == []


def started_by_name(name: str) -> bool:
    """Return whether another module has the name of a module, or of its package and a variable, in a string."""
    package, _, last = name.rpartition(".")
    within = re.escape(package.rpartition(".")[0])  # such as `tfcluster.providers.{name}.provider`
    names = re.compile(
        rf"""\b{re.escape(name)}\b|["']{re.escape(package)}(\.{{|["'])|["']{within}\.{{[\w.]+}}\.{last}["']"""
    )
    return any(names.search(path.read_text()) for module, path in MODULES.items() if module != name)


def test_every_module_is_imported() -> None:
    imported = {name for names in imports_by_module().values() for name in names}
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    unused = MODULES.keys() - imported - packages - ENTRY_POINTS
    assert [name for name in unused if not (name in PROGRAMS or started_by_name(name))] == []


def test_a_function_has_at_most_50_lines() -> None:
    too_long = {f"{name}: {function}" for name, path in MODULES.items() for function in long_functions_in(path)}
    assert too_long == set()


def test_a_circle_is_found() -> None:
    imports = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": set[str]()}
    assert circles_in(imports) == ["a", "b", "c", "a"]
    assert circles_in({**imports, "c": {"d"}}) == []
