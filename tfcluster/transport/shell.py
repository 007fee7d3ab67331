"""Quote command lines for another host's shell; no other module does this."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HOME = "~/"
# Characters that are special within single quotes: the quote itself in every shell, the backslash in fish, ! in csh.
_SPECIAL = re.compile(r"['\\!]")


def quote(words: Iterable[str]) -> str:
    """Quote words as a command line that sh, bash, dash, zsh, fish and csh split into the same words.

    A word with a newline does not work in csh.

    Args:
        words: The words of the command line, unquoted.

    Returns:
        The command line.
    """
    return " ".join(map(_quoted, words))


def quote_path(path: str) -> str:
    """Quote a path as one word of a command line.

    Args:
        path: The path. If it begins with `~/`, the host's shell expands it to the user's home folder there.

    Returns:
        The quoted word.
    """
    return _HOME + quote([path[len(_HOME) :]]) if path.startswith(_HOME) else quote([path])


def _quoted(word: str) -> str:
    return "'" + _SPECIAL.sub(lambda found: f"'\\{found[0]}'", word) + "'"
