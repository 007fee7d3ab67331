"""Who may import whom: only downward, and each of the large libraries in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tfcluster

ROOT = Path(tfcluster.__file__).parent

#: What each part may import besides itself.
_BASE = {"control_characters", "errors", "settings", "tf_install", "paths", "process_handle", "runtime_dir"}
_PURE = {*_BASE, "spec", "core", "protocol"}
ALLOWED = {
    "__init__": set[str](),
    "__main__": {"cli"},
    "control_characters": set[str](),
    "errors": set[str](),
    "settings": set[str](),
    "tf_install": {"errors"},
    "paths": {"errors", "settings"},
    "process_handle": {"errors", "settings"},
    "runtime_dir": {"errors", "paths", "settings"},
    "spec": _BASE,
    "core": {*_BASE, "spec"},
    "protocol": {*_BASE, "spec", "core"},
    "placement": {*_BASE, "core"},
    "programs": {*_BASE, "core"},
    "processes": {*_BASE, "core", "protocol", "programs"},
    "agent": {*_PURE, "processes"},
    "transport": {*_PURE, "__init__"},
    "client": {*_PURE, "placement", "transport"},
    "ui": {*_PURE, "placement", "client"},
    "cli": {*_PURE, "placement", "client", "ui", "__init__"},
}
#: The only parts that may import a library.
OWNERS = {
    "tensorflow": {"programs"},
    "yaml": {"spec"},
    "pydantic": {"spec"},
    "pydantic_core": {"spec"},
    "rich": {"ui"},
    "matplotlib": {"ui"},
    "click": {"cli"},
    "grpc": {"processes"},
    "google": {"processes"},
    "asyncio": {"agent"},
    "psutil": {"agent"},
    "numpy": {"programs"},
}


@dataclass(frozen=True)
class Import:
    """One import of one module.

    Attributes:
        at: The file and line of it.
        part: The part of the package that the file belongs to.
        module: What is imported.
        lazy: It is inside a function.
        typing: It is only for the type checker.
    """

    at: str
    part: str
    module: str
    lazy: bool
    typing: bool

    @property
    def target(self) -> str | None:
        """The part of the package that is imported; None for other libraries."""
        names = self.module.split(".")
        if names[0] != "tfcluster":
            return None
        return names[1] if len(names) > 1 else "__init__"


def _modules_named(node: ast.ImportFrom, root: Path) -> Iterator[str]:
    """Yield what `from MODULE import ...` imports: of the package itself its parts, and itself for its other names."""
    assert node.module is not None
    if node.module != "tfcluster":
        yield node.module
        return
    for alias in node.names:
        is_part = (root / alias.name).is_dir() or (root / f"{alias.name}.py").is_file()
        yield f"tfcluster.{alias.name}" if is_part else "tfcluster"


def imports_of(path: Path, root: Path = ROOT) -> Iterator[Import]:
    relative = path.relative_to(root)
    part = relative.parts[0].removesuffix(".py")

    def walk(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative}:{node.lineno}: a relative import"
            modules = list(_modules_named(node, root))
        for module in modules:
            yield Import(f"{relative}:{getattr(node, 'lineno', 0)}", part, module, lazy, typing)
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                yield from walk(statement, lazy, True)
            for statement in node.orelse:
                yield from walk(statement, lazy, typing)
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy, typing)

    yield from walk(ast.parse(path.read_text()), False, False)


FILES = sorted(ROOT.rglob("*.py"))
IMPORTS = [each for path in FILES for each in imports_of(path)]


def test_every_part_has_a_rule() -> None:
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} <= ALLOWED.keys()


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_a_part_imports_only_what_is_below_it(part: str) -> None:
    wrong = [
        f"{each.at} imports {each.module}"
        for each in IMPORTS
        if each.part == part and each.target is not None and each.target not in {part, *ALLOWED[part]}
    ]
    assert wrong == []


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    wrong = [
        f"{each.at} imports {each.module}"
        for each in IMPORTS
        if each.module.split(".")[0] == library and each.part not in OWNERS[library]
    ]
    assert wrong == []


def test_what_may_not_be_installed_is_imported_only_when_it_is_needed() -> None:
    found = [each for each in IMPORTS if each.module.split(".")[0] == "matplotlib"]
    assert [(each.at.partition(":")[0], each.lazy) for each in found] == [("ui/plot.py", True)]


def test_the_rules_name_no_circle() -> None:
    order: list[str] = []
    left = dict(ALLOWED)
    while left:
        free = [part for part, below in left.items() if below <= set(order)]
        assert free, f"a circle among {sorted(left)}"
        order += free
        for part in free:
            del left[part]


def test_programs_are_imported_by_processes_only_when_they_are_needed() -> None:
    found = [each for each in IMPORTS if each.part == "processes" and each.target == "programs"]
    assert found
    assert [each.at for each in found if not (each.lazy or each.typing)] == []


def test_the_spec_is_only_a_type_below_the_client() -> None:
    # An agent's Python need not have pydantic and PyYAML.
    found = [each for each in IMPORTS if each.target == "spec" and each.part not in {"spec", "client", "cli"}]
    assert [each.at for each in found if not each.typing] == []


def test_commands_import_no_other_part_before_they_are_called() -> None:
    light = {"cli", "control_characters", "errors", "settings", "__init__"}
    found = [each for each in IMPORTS if each.part == "cli" and each.target is not None and each.target not in light]
    assert [each.at for each in found if not (each.lazy or each.typing)] == []


def test_this_test_sees_imports_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "spec").mkdir()
    file = tmp_path / "spec" / "a.py"
    file.write_text(
        "from tfcluster import spec, __version__\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import yaml.reader\n"
        "def f():\n"
        "    try:\n        from tfcluster.cli.main import main\n"
        "    except ImportError:\n        import rich\n"
    )
    found = {(each.module, each.target, each.lazy, each.typing) for each in imports_of(file, tmp_path)}
    assert found == {
        ("tfcluster.spec", "spec", False, False),
        ("tfcluster", "__init__", False, False),
        ("typing", None, False, False),
        ("yaml.reader", None, False, True),
        ("tfcluster.cli.main", "cli", True, False),
        ("rich", None, True, False),
    }
