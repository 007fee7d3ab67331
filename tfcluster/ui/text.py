"""Styled text with escaped control characters: every rich Text of this package is created through this class."""

from __future__ import annotations

from typing import Any

import rich.text

from tfcluster.control_characters import escape_control_characters


class Text(rich.text.Text):
    """A rich Text whose control characters are escaped before rich measures the text and strips some of them."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(escape_control_characters(text), *arguments, **options)

    def append(self, text: rich.text.Text | str, style: Any = None) -> rich.text.Text:
        """Append text with a style of its own."""
        return super().append(escape_control_characters(text) if isinstance(text, str) else text, style)

    @classmethod
    def assemble(cls, *parts: Any, **options: Any) -> Text:
        """Create a text from strings, pairs of a string and its style, and other texts."""
        text = super().assemble(*parts, **options)
        assert isinstance(text, cls), "it is made with this class, and by `append`"
        return text
