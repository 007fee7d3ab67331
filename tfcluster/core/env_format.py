"""Environment variables as text that a shell, docker, python-dotenv or a program reads back as they are."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

# What python-dotenv and docker both take as it stands up to the end of the line: neither a quote nor white space at an
# end, and nothing that python-dotenv takes for a comment or a reference to another variable.
_PLAIN = re.compile(r"""(?!['"\s])(?!.*\s(?:\#|$))(?!.*\$\{)[^\r\n]*""")


def format_sh(variables: Mapping[str, str]) -> str:
    """Return commands for sh that export variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def format_json(variables: Mapping[str, str]) -> str:
    """Return variables as a JSON object."""
    return json.dumps(variables)


def format_dotenv(variables: Mapping[str, str]) -> str:
    """Return variables as a file that python-dotenv reads, and `docker run --env-file` too if no value needs quotes."""
    return "\n".join(f"{name}={_quote(value)}" for name, value in variables.items())


def needs_quotes(value: str) -> bool:
    """Return whether a value needs quotes in a dotenv file; `docker run --env-file` takes them as part of the value."""
    return _PLAIN.fullmatch(value) is None


def _quote(value: str) -> str:
    if not needs_quotes(value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
