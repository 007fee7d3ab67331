"""Every module is used, has short functions, and is in no circle of imports; test_layers.py has the rules."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import tfcluster

PACKAGE = Path(tfcluster.__file__).parent
MAX_FUNCTION_LINES = 50
#: Modules that nothing imports: `python -m` starts the first, and the bootstrap program on a host the second.
ENTRY_POINTS = {"tfcluster.__main__", "tfcluster.transport.remote.install"}
#: The parts of a program, which tfcluster.programs.registry finds by their names.
PROGRAM_PARTS = re.compile(r"tfcluster\.programs\.\w+\.(options|run|render)")


def name_of(path: Path, package: Path) -> str:
    """Return the full name of the module in a file of a package."""
    relative = path.relative_to(package.parent).with_suffix("")
    return ".".join(relative.parts).removesuffix(".__init__")


def modules_in(package: Path) -> dict[str, Path]:
    """Return the files of a package's modules by the modules' full names."""
    return {name_of(path, package): path for path in sorted(package.rglob("*.py"))}


def imports_in(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules that a module imports at any depth: in functions, and only for the type checker, too.

    `from package import name` imports the module of that name, if there is one, or else the package.
    """

    def walk(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules else str(node.module)
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from (name for name in walk(ast.parse(path.read_text())) if name in modules)


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
            yield node.name


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from `def` on, without its decorators."""
    return (function.end_lineno or 0) - function.lineno + 1


MODULES = modules_in(PACKAGE)


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Return what each module imports; reading them takes a second, which only the worker that needs it spends."""
    return {name: set(imports_in(path, MODULES)) for name, path in MODULES.items()}


def test_no_two_modules_import_each_other() -> None:
    assert circles_in(all_imports()) == []


def started_by_name(name: str) -> bool:
    """Return whether another module has the name of a module, or of its package and a variable, in a string."""
    package = re.escape(name.rpartition(".")[0])
    names = re.compile(rf"""\b{re.escape(name)}\b|["']{package}(\.{{|["'])""")
    return any(names.search(path.read_text()) for module, path in MODULES.items() if module != name)


def test_every_module_is_imported() -> None:
    imported = {name for names in all_imports().values() for name in names}
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    unused = MODULES.keys() - imported - packages - ENTRY_POINTS
    assert [name for name in unused if not (PROGRAM_PARTS.fullmatch(name) or started_by_name(name))] == []


def test_a_function_has_at_most_50_lines() -> None:
    too_long = {f"{name}: {function}" for name, path in MODULES.items() for function in long_functions_in(path)}
    assert too_long == set()


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "__init__.py").touch()
    (package / "a.py").write_text("from package.inner import b\n")
    (package / "inner" / "b.py").write_text("def f():\n    import package.c\n")
    (package / "c.py").write_text("class C:\n    def f(self):\n        from package.a import x\n")
    (package / "d.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package import e\n")
    (package / "e.py").write_text("from package import d\n")
    modules = modules_in(package)
    imports = {name: set(imports_in(path, modules)) for name, path in modules.items()}
    assert circles_in(imports) == ["package.a", "package.inner.b", "package.c", "package.a"]
    del imports["package.c"]
    assert circles_in(imports) == ["package.d", "package.e", "package.d"]
    del imports["package.e"]
    assert circles_in(imports) == []
