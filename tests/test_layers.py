"""Who may import whom: only downward, and each of the large libraries in one place.

The bundled programs (`programs/bundled`) use what scripts use (`programs`), and the command line shows them: it loads
them without TensorFlow, and a host runs them without click and rich. So they import all four only in their functions.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tfcluster
from tfcluster.core.programs import BUNDLED

ROOT = Path(tfcluster.__file__).parent

#: What each part may import besides itself.
_BASE = {
    *("boot", "control_characters", "errors", "input_file", "settings", "tf_install", "paths", "private_network", "os"),
    *("process_mark", "records", "reporting", "runtime_dir"),
}
_PURE = {*_BASE, "spec", "core", "protocol"}
#: Of providers: what finds them by name, and what they do on a host.
_HOSTS = {"providers/base", "providers/host_side"}
#: The parts of the modules of providers, by the module's name; `providers` has the others.
_OF_PROVIDERS = {
    **dict.fromkeys(["providers", "earlier"], "providers/base"),
    **dict.fromkeys(["request", "requests"], "providers/request"),
    **dict.fromkeys(["host_side", "job", "node_holder"], "providers/host_side"),
    "command": "providers/command",
    "start": "providers/start",
}
ALLOWED = {
    "__init__": {"connection", "reporting", "programs", "version"},
    "version": set[str](),
    "boot": {"os"},
    "__main__": {"cli"},
    "control_characters": set[str](),
    "errors": set[str](),
    "settings": set[str](),
    "input_file": {"settings"},
    "tf_install": {"errors"},
    "paths": {"errors", "settings"},
    "records": set[str](),
    "reporting": {"settings"},
    "os": {"records", "settings"},
    "private_network": {"errors", "os"},
    "process_mark": {"os"},
    "runtime_dir": {"errors", "paths", "settings"},
    "spec": {*_BASE, "providers/request"},
    "providers/request": {*_BASE, "spec"},
    "core": {*_BASE, "spec"},
    "protocol": {*_BASE, "spec", "core", "version"},
    "programs": {*_BASE, "core"},
    "programs/bundled": {*_BASE, "__init__", "core", "programs", "cli", "ui"},
    "processes": {*_BASE, "core", "protocol", "programs"},
    "agent": {*_PURE, *_HOSTS, "processes", "version"},
    "transport": {*_PURE, *_HOSTS, "version"},
    "providers/base": {*_BASE, "core", "providers", "providers/host_side"},
    "providers/host_side": {*_BASE, "core", "protocol"},
    "providers": {*_PURE, *_HOSTS, "providers/request", "providers/start", "transport"},
    "providers/start": {*_BASE, "agent", "core", "protocol", "transport"},
    "providers/command": {*_PURE, "cli", "client", "providers", "providers/request"},
    "client": {*_PURE, *_HOSTS, "providers", "providers/request", "transport", "version"},
    "ui": {*_PURE, "client", "programs"},
    "dashboard": {*_PURE, "client", "ui", "version"},
    "cli": {*_PURE, *_HOSTS, "client", "dashboard", "providers/request", "ui", "programs", "version"},
    "connection": {*_PURE, "client", "cli"},
}
#: The only parts that may import a library.
OWNERS = {
    "tensorflow": {"programs", "programs/bundled", "processes", "connection"},
    "yaml": {"spec"},
    "pydantic": {"spec", "providers/request"},
    "pydantic_core": {"spec"},
    "cryptography": {"client"},
    "pathspec": {"client"},
    "rich": {"ui", "programs/bundled"},
    "textual": {"ui"},
    "matplotlib": {"ui"},
    "click": {"cli", "programs/bundled", "providers/command"},
    "grpc": {"processes"},
    "google": {"processes"},
    "asyncio": {"agent", "transport", "ui"},  # Textual runs its loop
    "numpy": {"programs", "programs/bundled", "processes"},
}


def part_of(module: str) -> str:
    """Return the part that a module of ours belongs to."""
    names = module.split(".")
    if len(names) < 2:
        return "__init__"
    if names[1] == "providers":
        return _OF_PROVIDERS.get(names[-1], "providers")
    return "programs/bundled" if names[1] == "programs" and names[-1] in BUNDLED else names[1]


@dataclass(frozen=True)
class Import:
    """One import of one module."""

    at: str  # the file and line of it
    part: str  # the part of the package that the file belongs to
    module: str  # what is imported
    lazy: bool  # it is inside a function
    typing: bool  # it is only for the type checker

    @property
    def target(self) -> str | None:
        """The part of the package that is imported; None for other libraries."""
        return part_of(self.module) if self.module.split(".")[0] == "tfcluster" else None


def part_of_file(relative: Path) -> str:
    """Return the part that a file of the package belongs to."""
    if len(relative.parts) == 1:
        return relative.stem
    return part_of(".".join(("tfcluster", *relative.with_suffix("").parts)).removesuffix(".__init__"))


def _modules_named(node: ast.ImportFrom, root: Path) -> Iterator[str]:
    """Yield what `from MODULE import ...` imports: of our packages their modules, and the package for other names."""
    assert node.module is not None
    if node.module.split(".")[0] != "tfcluster":
        yield node.module
        return
    folder = root.joinpath(*node.module.split(".")[1:])
    for alias in node.names:
        is_module = (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").is_file()
        yield f"{node.module}.{alias.name}" if is_module else node.module


def imports_of(path: Path, root: Path = ROOT) -> Iterator[Import]:
    """Yield what a module imports at any depth."""
    relative = path.relative_to(root)
    part = part_of_file(relative)

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


@functools.cache
def all_imports() -> list[Import]:
    """Return the imports of all files; reading them takes a second, which only the worker that needs it spends."""
    return [each for path in FILES for each in imports_of(path)]


def test_every_part_has_a_rule_and_what_may_not_be_installed_is_imported_only_when_it_is_needed() -> None:
    assert {part_of_file(path.relative_to(ROOT)) for path in FILES} <= ALLOWED.keys()
    found = [each for each in all_imports() if each.module.split(".")[0] == "matplotlib"]
    assert [(each.at.partition(":")[0], each.lazy) for each in found] == [("ui/plot.py", True)]


def test_bundled_programs_import_what_is_not_everywhere_only_in_their_functions() -> None:
    elsewhere = {"tensorflow", "numpy", "click", "rich", "cli", "ui"}
    found = [each for each in all_imports() if each.part == "programs/bundled" and not (each.lazy or each.typing)]
    assert [each for each in found if elsewhere & {each.module.split(".")[0], each.target}] == []


def test_pathspec_is_imported_only_where_code_is_sent() -> None:
    found = [each for each in all_imports() if each.module.split(".")[0] == "pathspec"]
    assert {(each.at.partition(":")[0], each.lazy or each.typing) for each in found} == {("client/runs/code.py", True)}


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_a_part_imports_only_what_is_below_it(part: str) -> None:
    wrong = [
        f"{each.at} imports {each.module}"
        for each in all_imports()
        if each.part == part and each.target is not None and each.target not in {part, *ALLOWED[part]}
    ]
    assert wrong == []


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    wrong = [
        f"{each.at} imports {each.module}"
        for each in all_imports()
        if each.module.split(".")[0] == library and each.part not in OWNERS[library]
    ]
    assert wrong == []


def test_what_an_agent_starts_is_told_its_folders() -> None:
    """The environment of such a process may name other folders than the agent uses."""
    names = {
        alias.name
        for path in FILES
        if part_of_file(path.relative_to(ROOT)) in ("processes", "programs")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in ("tfcluster.paths", "tfcluster.runtime_dir")
        for alias in node.names
    }
    assert names <= {"LOCAL_HOST", "PACKAGE_ROOT"}


def test_core_only_decides() -> None:
    """`core` is given what it decides about: it opens no socket or file, and starts no process or thread."""
    outside = {"os", "random", "select", "signal", "socket", "subprocess", "tempfile", "threading"}
    found = [each for each in all_imports() if each.part == "core" and each.module.split(".")[0] in outside]
    assert [f"{each.at} imports {each.module}" for each in found if not each.typing] == []


def test_programs_are_imported_by_processes_only_when_they_are_needed() -> None:
    found = [each for each in all_imports() if each.part == "processes" and (each.target or "").startswith("programs")]
    assert found
    assert [each.at for each in found if not (each.lazy or each.typing)] == []


def test_the_spec_is_only_a_type_below_the_client() -> None:
    # An agent's Python need not have pydantic and PyYAML.
    parts = {"spec", "providers/request"}
    found = [each for each in all_imports() if each.target in parts and each.part not in {*parts, "client", "cli"}]
    assert [each.at for each in found if not (each.typing or each.part == "providers/command")] == []


def test_commands_import_no_other_part_before_they_are_called() -> None:
    light = {"cli", "control_characters", "errors", "records", "settings", "version"}
    found = [
        each for each in all_imports() if each.part == "cli" and each.target is not None and each.target not in light
    ]
    others = [each for each in found if not (each.lazy or each.typing)]
    # `run script` is imported when its command is asked for.
    assert {each.module for each in others if not each.at.startswith("cli/script.py")} == {"tfcluster.core.programs"}


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
