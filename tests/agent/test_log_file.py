"""The last lines of a plain file, wherever blocks begin and end."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tfcluster import settings
from tfcluster.agent.logs.log_reader import tail

BLOCK = settings.IO_BLOCK_BYTES


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"", 3, []),
        (b"a\nb\nc\n", 2, ["b", "c"]),
        (b"a\nb\nc\n", 3, ["a", "b", "c"]),
        (b"a\nb\nc\n", 4, ["a", "b", "c"]),
        (b"a\nb\nc\n", 1, ["c"]),
        (b"a\nb\nc\n", 0, []),
        (b"a\nb\nc", 1, ["c"]),
        (b"a\nb\nc", 2, ["b", "c"]),
        (b"c", 1, ["c"]),
        (b"\n\n\n", 2, ["", ""]),
        (b"a\n\n", 2, ["a", ""]),
        (b"\xff\n\xc3\xa9\n", 2, ["\N{REPLACEMENT CHARACTER}", "é"]),
    ],
)
def test_the_last_lines(tmp_path: Path, content: bytes, lines: int, expected: list[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert tail(path, lines) == (expected, len(content))


def test_a_missing_file_is_an_empty_one(tmp_path: Path) -> None:
    assert tail(tmp_path / "log", 5) == ([], 0)


@pytest.mark.parametrize(
    "size",
    [
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        2 * BLOCK - 1,
        2 * BLOCK,
        2 * BLOCK + 1,
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_as_long_as_a_block_are_complete(tmp_path: Path, size: int, end: bytes) -> None:
    path = tmp_path / "log"
    long = b"x" * (size - 1 - len(end))
    path.write_bytes(b"first\nsecond\n" + long + b"y" + end)
    third = long.decode() + "y"
    assert tail(path, 1) == ([third], size + 13)
    assert tail(path, 2) == (["second", third], size + 13)
    assert tail(path, 9) == (["first", "second", third], size + 13)


def test_only_as_much_is_read_as_the_lines_need(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 35)  # a hole of 32 GiB
        file.seek(0, 2)
        file.write(b"\na\nb\n")
    assert tail(path, 2) == (["a", "b"], (1 << 35) + 5)


_CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc", "é".encode(), b"\xff", b"\r", b"\r\n", b"\x0c", b" "])).map(
    b"".join
)


@hypothesis_settings(deadline=None, max_examples=500)
@given(content=_CONTENT, lines=st.integers(0, 12), block=st.integers(1, 9))
def test_the_last_lines_are_split_at_newlines(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, lines: int, block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "newlines.log"
    path.write_bytes(content)
    with mock.patch.object(settings, "IO_BLOCK_BYTES", block):
        expected = tail(path, lines)
    all_lines = [line.decode(errors="replace") for line in content.removesuffix(b"\n").split(b"\n")] if content else []
    assert expected == (all_lines[len(all_lines) - min(lines, len(all_lines)) :], len(content))
