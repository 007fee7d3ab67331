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
# The keys that say neither which cluster a spec is of nor where it is.
_ELSEWHERE = ("jobs", "network", "restart", "logs", "notify", "warm", "lease")
#: The keys whose values are no text: what a variable holds is read there as YAML reads a number, or true and false.
TYPED_KEYS = frozenset(
    (
        *("cpus", "count", "gpus", "initial", "lease", "max", "run", "runs", "size", "slots", "tasks", "threads"),
        *("tls_port", "warm"),
    )
)


@dataclass(frozen=True)
class SpecEnvironment:
    """The environment variables that a spec depends on."""

    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)  # those that its strings name
    allocation: Mapping[str, str] = field(default_factory=lambda: os.environ)  # where a provider finds its allocation
    # Whether only the place of the cluster is of interest: elsewhere a variable that is not set counts as empty.
    only_place: bool = False

    def interpolate(self, text: str, path: KeyPath) -> str:
        """Replace the variables in the text at a path of a spec.

        A VariableError says what is wrong; it has no values of variables, which may be secret.
        """
        needs_all = not self.only_place or path[0] not in _ELSEWHERE
        return _DOLLAR.sub(lambda match: self._replacement(match, needs_all), text)

    def _replacement(self, match: re.Match[str], needs_all: bool) -> str:
        if match[0] == "$$":
            return "$"
        name = match["name"]
        if name is None:
            raise VariableError("expected ${NAME} or ${NAME:-DEFAULT}", "write $${ for a shell")
        value = self.variables.get(name)
        if value is not None and _SURROGATE.search(value):
            raise VariableError(f"the variable {name} is not UTF-8 text", "set it to a text")
        if match["default"] is not None:
            return value or match["default"]
        if value is None and needs_all:
            hint = f"set it, or write ${{{name}:-DEFAULT}}; $${{{name}}} is for a shell"
            raise VariableError(f"the variable {name} is not set", hint)
        return value or ""


class VariableError(Exception):
    """A variable in a string of a spec is not set, or is not written as one."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def is_variable(path: KeyPath) -> bool:
    """Return whether an environment variable is at a path of a spec; its value is a text, whatever its name."""
    return path[:2] == ("host", "env") or (path[0] in ("hosts", "jobs") and path[2:3] == ("env",) and len(path) > 3)
