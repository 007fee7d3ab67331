"""What neither import-linter nor vulture can say of the package's modules; pyproject.toml has the rules of both."""

from __future__ import annotations

import ast
import graphlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import grimp
import pytest

from tests import parallel
from tests.conftest import ROOT
from tfcluster import settings
from tfcluster.cli import main
from tfcluster.core.programs import BUNDLED
from tfcluster.programs import settings as program_settings
from tfcluster.providers.requests import REQUESTS

PACKAGE = ROOT / "tfcluster"
MAX_FUNCTION_LINES = 50
#: Libraries whose import takes long, or that a machine may lack.
LARGE = {"click", "cryptography", "grpc", "matplotlib", "numpy", "pathspec", "psutil", "pydantic", "rich", "tensorflow",
         "textual", "yaml"}  # fmt: skip
_LOAD = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\nprint(*sys.modules)"
_GRAPH = grimp.build_graph("tfcluster", cache_dir=None)
MODULES = _GRAPH.modules


def loaded_by(modules: Collection[str]) -> set[str]:
    """Return our modules, and the large libraries, that a Python has loaded when it has imported some modules."""
    command = [sys.executable, "-c", _LOAD, *modules]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    return {name for name in names if name in LARGE or name.startswith("tfcluster.")}


def within(modules: Collection[str], *packages: str) -> set[str]:
    """Return those of some modules that are in packages of ours, or are a library of these names."""
    names = (*packages, *map("tfcluster.{}".format, packages))
    return {module for module in modules if f"{module}.".startswith(tuple(f"{name}." for name in names))}


def test_commands_import_no_other_part_before_they_are_called() -> None:
    commands = within(MODULES, "cli") - {"tfcluster.cli.script"}  # imported when it is asked for
    others = loaded_by(commands) - commands
    light = {"control_characters", "core", "core.programs", "core.text", "errors", "records", "settings", "version"}
    assert others == {"click", *map("tfcluster.{}".format, light)}


@pytest.mark.parametrize(
    ("imported", "refused"),
    [
        # Commands load them without TensorFlow, and hosts run them without click and rich.
        ([f"programs.{name}" for name in BUNDLED], ["cli", "ui", *LARGE]),
        # A host has none of these; what runs without a program does not wait for TensorFlow.
        (["agent", "processes", "protocol", "transport"], ["programs", "spec", *(LARGE - {"psutil"})]),
        # They are not installed everywhere, or only needed now and then.
        (["client", "dashboard", "ui"], ["matplotlib", "numpy", "pathspec", "pydantic", "spec", "tensorflow", "yaml"]),
    ],
    ids=["programs", "hosts", "commands"],
)
def test_what_is_large_is_imported_only_when_it_is_needed(imported: list[str], refused: list[str]) -> None:
    modules = within(MODULES, *imported)
    assert within(loaded_by(modules), *refused) - modules == set()


def test_no_two_modules_import_each_other() -> None:
    graphlib.TopologicalSorter({name: _GRAPH.find_modules_directly_imported_by(name) for name in MODULES}).prepare()


def test_every_module_is_imported() -> None:
    commands = {*main._COMMANDS, *(place.partition(":")[0] for place in main._LOCATIONS.values())}
    started_by_name = {
        *(f"tfcluster.cli.{name}" for name in commands),
        *(f"tfcluster.programs.{name}" for name in BUNDLED),
        *(f"tfcluster.providers.{name}.{part}" for name in REQUESTS for part in ("command", "host_side", "provider")),
        *("tfcluster.__main__", "tfcluster.agent.start", "tfcluster.transport.remote.session"),
    }
    unused = {name for name in MODULES if not (_GRAPH.find_modules_that_directly_import(name) or is_package(name))}
    assert unused - started_by_name == set()


def is_package(module: str) -> bool:
    return bool(_GRAPH.find_children(module))


def test_what_an_agent_starts_is_told_its_folders() -> None:
    """The environment of such a process may name other folders than the agent uses."""
    folders = {"tfcluster.paths", "tfcluster.runtime_dir"}
    lines = {
        details["line_contents"]
        for importer in within(MODULES, "processes", "programs")
        for imported in _GRAPH.find_modules_directly_imported_by(importer) & folders
        for details in _GRAPH.get_import_details(importer=importer, imported=imported)
    }
    assert {line.partition(" import ")[2] for line in lines} == {"LOCAL_HOST"}


def long_functions_in(path: Path) -> Iterator[str]:
    """Yield the functions of a module that have too many lines from `def` on, without those that declare options."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES and (path.stem not in BUNDLED or node.name != "command"):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"


def test_a_function_has_at_most_50_lines() -> None:
    assert [function for path in sorted(PACKAGE.rglob("*.py")) for function in long_functions_in(path)] == []


def has_unit(name: str, value: object) -> bool:
    """Return whether a setting that needs a unit has it in its name."""
    if isinstance(value, float | tuple):
        return re.search(r"_SECONDS(_|$)|_FACTOR$", name) is not None
    if isinstance(value, int) and value >= 1 << 12 and not name.endswith("_PORT"):
        return re.search(r"_(SECONDS|MS|BYTES|NUMBERS|VALUES|ITEMS|MAX)(_|$)", name) is not None
    return True


def test_a_setting_has_its_unit_in_its_name_and_is_read_when_it_is_used() -> None:
    values = {**vars(settings), **vars(program_settings)}
    assert [name for name, value in values.items() if name.isupper() and not has_unit(name, value)] == []
    copied = re.compile(
        r"from tfcluster\.(programs\.)?settings import|^_?[A-Z_0-9]+ = settings\.[A-Z_0-9]+$", re.MULTILINE
    )
    assert [str(path) for path in PACKAGE.rglob("*.py") if copied.search(path.read_text())] == []


def test_each_module_that_begins_first_is_there() -> None:
    assert {path.stem for path in (ROOT / "tests").rglob("test_*.py")} >= parallel.LONG_MODULES


def test_each_script_for_tests_is_named_by_a_test() -> None:
    scripts = ROOT / "tests" / "scripts"
    tests = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if scripts not in path.parents]
    names = {path.name for path in scripts.iterdir() if path.name != "__pycache__"}
    assert {name for name in names if not any(f'"{name}"' in text for text in tests)} == set()


#: The tests in which functions of ours are replaced, besides those of `tfcluster.os`, which the kernel may refuse.
REPLACING = (
    "project.py",  # what starts agents, and what connects to hosts
    "cast.py",  # which cluster every command finds
    "agent/conftest.py",  # notes which journals are open
    "agent/test_meters.py",  # psutil is not installed
    "agent/test_supervisor.py",
    "end_to_end/test_hosts.py",
    "programs/",  # TensorFlow's sessions are played
    "providers/",  # kubectl and Slurm are played
    "transport/test_ssh_config.py",  # the version of ssh
    "ui/test_top.py",  # there is no terminal
)


def replaced_in(path: Path) -> Iterator[str]:
    """Yield the functions and classes of ours that a module of tests replaces."""
    if "setattr" not in (text := path.read_text()):
        return
    nodes = [*ast.walk(ast.parse(text))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tfcluster")]
    ours = {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    for node in nodes:
        if not (isinstance(node, ast.Call) and "setattr" in (getattr(node.func, each, "") for each in ("id", "attr"))):
            continue
        words = [str(each.value) if isinstance(each, ast.Constant) else ast.unparse(each) for each in node.args[:2]]
        variable, *attributes = words[0].split(".")
        place = words[0] if words[0].startswith("tfcluster.") else ".".join([ours.get(variable, ""), *attributes])
        if isinstance(node.args[1], ast.Constant) and place != words[0]:
            place += f".{words[1]}"
        value = pkgutil.resolve_name(place) if place.startswith("tfcluster.") else None
        module = getattr(value, "__module__", None) or ""
        if callable(value) and module.startswith("tfcluster.") and not module.startswith("tfcluster.os."):
            yield place


def test_tests_replace_no_function_of_ours() -> None:
    """With `setattr`: a command has played agents before it, and what runs in an agent has real processes."""
    tests = ROOT / "tests"
    paths = [path for path in tests.rglob("*.py") if not str(path.relative_to(tests)).startswith(REPLACING)]
    assert {str(path): found for path in paths if (found := [*replaced_in(path)])} == {}
