"""Makes text that others wrote harmless for a terminal: their control characters are shown, not sent."""

from __future__ import annotations

import re

# C0 but tab and newline, DEL, C1, what overrides the direction of text, which hides what a line says, and halves of
# surrogate pairs, which cannot be printed. A pattern is several times as fast as str.translate where a character
# becomes several.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_control_characters(text: str) -> str:
    r"""Return a text with its control characters written as in a Python string: `\x1b`, `\r`, `\u202e`.

    Newlines and tabs stay; the carriage return in front of a newline, or at the end, is left out.
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(_escape, text.replace("\r\n", "\n").removesuffix("\r"))


def _escape(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
