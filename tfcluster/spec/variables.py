"""Variables in the strings of a spec: `${NAME}`, `${NAME:-DEFAULT}`, and `$$` for a dollar sign, as in Compose."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfcluster.spec.diagnostics import KeyPath

# Other dollar signs, as in $HOME and $(hostname), are for the shells that run commands of a spec.
_DOLLAR = re.compile(r"\$(?:\$|\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\})?)")
_SURROGATE = re.compile("[\ud800-\udfff]")  # how Python represents bytes that are not UTF-8
# The keys that say neither which cluster a spec is of nor where it is, and those of a job that do say where it is.
_ELSEWHERE = ("network", "restart", "logs", "notify", "warm", "lease")
_PLACE_OF_JOB = ("tasks", "hosts")
#: The keys whose values are no text: what a variable holds is read there as YAML reads a number, or true and false.
TYPED_KEYS = frozenset(
    (
        *("cpus", "count", "gpus", "initial", "lease", "max", "run", "runs", "size", "slots", "tasks", "threads"),
        *("tls_port", "warm"),
    )
)


@dataclass(frozen=True)
class SpecEnvironment:
    """The environment variables that a spec depends on, and what became of those that its strings name."""

    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)  # those that its strings name
    allocation: Mapping[str, str] = field(default_factory=lambda: os.environ)  # where a provider finds its allocation
    only_place: bool = False  # whether only what `says_place` is read
    unset: set[str] = field(default_factory=set)  # the names of variables that are neither set nor have a default
    replaced: set[KeyPath] = field(default_factory=set)  # the paths of texts with variables, but for numbers of tasks

    def interpolate(self, text: str, path: KeyPath) -> str:
        """Replace the variables in the text at a path of a spec.

        A VariableError says what is wrong; it has no values of variables, which may be secret.
        """
        return _DOLLAR.sub(lambda match: self._replacement(match, path), text)

    def _replacement(self, match: re.Match[str], path: KeyPath) -> str:
        if match[0] == "$$":
            return "$"
        name = match["name"]
        if name is None:
            raise VariableError("expected ${NAME} or ${NAME:-DEFAULT}", "write $${ for a shell")
        is_count = path[0] == "jobs" and path[2:] == ("tasks",)
        if not is_count:
            self.replaced.add(path)
        value = self.variables.get(name)
        if value is not None and _SURROGATE.search(value):
            raise VariableError(f"the variable {name} is not UTF-8 text", "set it to a text")
        if match["default"] is not None:
            return value or match["default"]
        if value is not None:
            return value
        self.unset.add(name)
        if self.only_place and is_count:
            return "1"  # where tasks are does not depend on it
        raise VariableError(
            f"the variable {name} is not set", f"set it, or write ${{{name}:-DEFAULT}}; $${{{name}}} is for a shell"
        )


def says_place(path: KeyPath) -> bool:
    """Return whether a key, or a value in it, says which cluster a spec is of, or where it is."""
    is_of_job = path[0] == "jobs" and len(path) > 2 and not isinstance(path[2], int)  # the list of addresses says it
    return path[0] not in _ELSEWHERE and (not is_of_job or path[2] in _PLACE_OF_JOB)


class VariableError(Exception):
    """A variable in a string of a spec is not set, or is not written as one."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def is_variable(path: KeyPath) -> bool:
    """Return whether an environment variable is at a path of a spec; its value is a text, whatever its name."""
    return path[:2] == ("host", "env") or (path[0] in ("hosts", "jobs") and path[2:3] == ("env",) and len(path) > 3)
