"""The one place where words become a command line for another host's shell."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HOME = "~/"
# Within single quotes the end of the quotes is special to every shell, the backslash to fish, and ! to csh.
_SPECIAL = re.compile(r"['\\!]")


def quote(words: Iterable[str]) -> str:
    """Words as a command line that sh, bash, dash, zsh, fish and csh take apart into the same words.

    (But csh takes no newline within a word.)
    """
    return " ".join(map(_quoted, words))


def quote_path(path: str) -> str:
    """A path as one word of a command line; one that begins with `~/` is in the user's home folder there."""
    return _HOME + quote([path[len(_HOME) :]]) if path.startswith(_HOME) else quote([path])


def _quoted(word: str) -> str:
    return "'" + _SPECIAL.sub(lambda found: f"'\\{found[0]}'", word) + "'"
