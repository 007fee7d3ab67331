"""Quote command lines for the shells of other machines."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HOME = "~/"
# Characters that are special within single quotes: the quote itself in every shell, the backslash in fish, ! in csh.
_SPECIAL = re.compile(r"['\\!]")


def quote(words: Iterable[str]) -> str:
    """Quote words as a command line that sh, bash, dash, zsh, fish and csh split into the same words.

    A word with a newline does not work in csh.
    """
    return " ".join("'" + _SPECIAL.sub(r"'\\\g<0>'", word) + "'" for word in words)


def quote_path(path: str) -> str:
    """Quote a path as one word of a command line in which the host's shell expands a leading `~/`."""
    return _HOME + quote([path[len(_HOME) :]]) if path.startswith(_HOME) else quote([path])
