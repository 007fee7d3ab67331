"""Escape control characters in untrusted text, such as log lines, before it is written to a terminal."""

from __future__ import annotations

import re

# C0 except tab and newline, DEL, C1, the characters that override the direction of text (they can hide what a line
# says), and lone surrogates, which cannot be printed. A regular expression is several times as fast as str.translate
# when one character is replaced by several.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_control_characters(text: str) -> str:
    r"""Return a text with its control characters escaped as in a Python string: `\x1b`, `\r`, `\u202e`.

    Newlines and tabs are kept; a carriage return before a newline or at the end is removed.
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(_escape, text.replace("\r\n", "\n").removesuffix("\r"))


def escape_to_one_line(text: str) -> str:
    r"""Return a sentence that quotes names, such as those of files, with all that is not printable escaped, as `\n`."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _escape(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
