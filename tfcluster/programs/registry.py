"""Find programs by name: those of tfcluster, and those of other installed packages (entry points)."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from tfcluster.core.programs import BUNDLED
from tfcluster.errors import ClusterError
from tfcluster.programs.api import Program, ProgramTraits

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The entry point group in which other packages register their programs: the name of each and its package.
GROUP = "tfcluster.programs"

Value = TypeVar("Value")
Exceptions = tuple[type[BaseException], ...]

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class InstalledProgram:
    """A program of this Python environment."""

    name: str
    module: str  # full name of its package, such as `tfcluster.programs.pi`
    package: str  # the installed package (distribution) that it belongs to; empty if it is part of tfcluster
    declaration: Program

    def traits(self, parameters: dict[str, Any]) -> ProgramTraits:
        """Return what an agent must know to supervise a run with these parameters."""
        return self.call(self.declaration.traits, parameters, self.package)

    def has(self, part: str) -> bool:
        """Return whether the program has a module, `options`, `run` or `render`, without importing it."""
        return importlib.util.find_spec(f"{self.module}.{part}") is not None

    def load(self, part: str, attribute: str, kind: type | None = None) -> Any:
        """Import one of the program's modules (`options`, `run` or `render`) and return an attribute of it.

        Raises ClusterError if the module cannot be imported, or the attribute is missing or not an instance of `kind`
        (None: not callable).
        """
        value = getattr(_import(self.name, self.package, f"{self.module}.{part}"), attribute, None)
        if not (callable(value) if kind is None else isinstance(value, kind)):
            noun = "function" if kind is None else kind.__name__
            raise self.error(f"{self.module}.{part} has no {noun} {attribute!r}")
        return value

    def call(self, function: Callable[..., Value], *args: Any, passed: Exceptions = (), **named: Any) -> Value:
        """Call a function of the program; if it is of another package, an unexpected exception names that package.

        Such an exception becomes a ClusterError. ClusterError, OSError and the exceptions `passed` are let through.
        """
        try:
            return function(*args, **named)
        except (ClusterError, OSError):
            raise
        except passed:
            raise
        except Exception as error:
            if not self.package:
                raise
            what = f"{function.__module__}.{function.__name__}() failed"
            raise self.error(f"{what}: {type(error).__name__}: {error}") from error

    def error(self, problem: str) -> ClusterError:
        """Return an error of this program that names its package."""
        return _unusable(self.name, self.package or "tfcluster", problem)


def find(name: str) -> InstalledProgram | None:
    """Return the program of a name, if any; raises ClusterError if its package is broken, or the name is not unique."""
    if name in BUNDLED:
        return _load_bundled(name)
    entries = [each for each in _entry_points() if each.name == name]
    return _load(entries) if entries else None


def find_all() -> tuple[list[InstalledProgram], list[ClusterError]]:
    """Return all programs, those of tfcluster first, and an error for each unusable one of another package."""
    programs = [_load_bundled(name) for name in BUNDLED]
    errors: list[ClusterError] = []
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in _entry_points():
        by_name.setdefault(entry.name, []).append(entry)
    for name in sorted(by_name):
        try:
            programs.append(_load(by_name[name]))
        except ClusterError as error:
            errors.append(error)
    return programs, errors


def _load_bundled(name: str) -> InstalledProgram:
    module = f"{__package__}.{name}"
    return InstalledProgram(name, module, "", importlib.import_module(module).PROGRAM)


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    importlib.invalidate_caches()  # a package may have been installed since this process started
    return list(entry_points(group=GROUP))


def _load(entries: Sequence[EntryPoint]) -> InstalledProgram:
    """Load the declaration of the program that has these entry points; normally there is one."""
    entry = entries[0]
    name, package = entry.name, _package_name(entry)
    if not _NAME.fullmatch(name):
        raise _unusable(name, package, "a program's name has lower-case letters, digits, _ and -, at most 40")
    if name in BUNDLED:
        raise _unusable(name, package, "tfcluster itself has a program of this name")
    if len(entries) > 1:
        others = ", ".join(_package_name(each) for each in entries[1:])
        raise _unusable(name, package, f"another package has a program of this name: {others}")
    module = _import(name, package, entry.value)
    if not isinstance(declaration := getattr(module, "PROGRAM", None), Program):
        raise _unusable(name, package, f"{entry.value} has no declaration (PROGRAM = Program(...))")
    program = InstalledProgram(name, entry.value, package, declaration)
    if missing := [part for part in ("options", "run") if not (hasattr(module, "__path__") and program.has(part))]:
        raise _unusable(name, package, f"{entry.value} has no module {' and no module '.join(missing)}")
    return program


def _import(name: str, package: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever another package's code raises
        if not package:
            raise
        lines = str(error).strip().splitlines() or [""]
        problem = f"{module} cannot be imported: {type(error).__name__}: {lines[0]}"
        raise _unusable(name, package, problem) from error


def _package_name(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def _unusable(name: str, package: str, problem: str) -> ClusterError:
    return ClusterError(
        f"the program {name!r} of the package {package} cannot be used: {problem}",
        hint=f"Update the package or remove it: pip uninstall {package}",
    )
