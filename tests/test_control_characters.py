"""Control characters of others are shown, not sent to the terminal."""

from __future__ import annotations

import unicodedata

import pytest

from tfcluster.control_characters import escape_control_characters


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain, ünïcode — 数 🙂", "plain, ünïcode — 数 🙂"),
        ("two\nlines\tand a tab\n", "two\nlines\tand a tab\n"),
        ("no\u00a0break", "no\u00a0break"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
        ("\x1b]52;c;ZXZpbA==\x1b\\", r"\x1b]52;c;ZXZpbA==\x1b" + "\\"),
        ("\x9b2J\x85\x7f\x00", r"\x9b2J\x85\x7f\x00"),
        ("a\x08b\x0bc\x0cd", r"a\x08b\x0bc\x0cd"),
        ("user\u202egpj.exe\u202c \u2066x\u2069", r"user\u202egpj.exe\u202c \u2066x\u2069"),
        ("half a pair \ud83d, a byte \udcff", r"half a pair \ud83d, a byte \udcff"),
        ("line\r\n", "line\n"),
        ("line\r", "line"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("10%\r20%\r", r"10%\r20%"),
        ("line\r\r\n", "line\\r\n"),
        (r"a literal \x1b", r"a literal \x1b"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert escape_control_characters(text) == shown
    assert escape_control_characters(shown) == shown


def test_no_control_character_but_newline_and_tab_is_left() -> None:
    every = "".join(map(chr, range(0x3000)))
    left = [each for each in escape_control_characters(every) if unicodedata.category(each) == "Cc"]
    assert left == ["\t", "\n"]
    overriding = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not [each for each in escape_control_characters(every) if unicodedata.bidirectional(each) in overriding]
