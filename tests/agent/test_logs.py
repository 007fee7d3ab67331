"""The last lines of a log and what is appended to it, wherever blocks begin and end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.agent.logs import reading
from tfcluster.agent.logs.reading import follow_all, lines_between, span, tail

_BLOCK = reading._BLOCK


def last(path: Path, lines: int | None, *, partial: bool = True) -> tuple[list[str], int]:
    """The last lines of a file and the offset behind them, as `logs` gets them."""
    start, end = span(path, lines, partial=partial)

    async def collect() -> list[str]:
        return [line async for line in lines_between(path, start, end)]

    return asyncio.run(collect()), end


@pytest.mark.parametrize(
    ("content", "lines", "found"),
    [
        (b"", None, []),
        (b"", 3, []),
        (b"a\nb\nc\n", None, ["a", "b", "c"]),
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
def test_the_last_lines(tmp_path: Path, content: bytes, lines: int | None, found: list[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert last(path, lines) == (found, len(content))


def test_a_line_without_its_end_is_left_to_who_goes_on_reading(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\nb\nhal")
    assert last(path, 1, partial=False) == (["b"], 4)
    assert last(path, None, partial=False) == (["a", "b"], 4)
    path.write_bytes(b"hal")
    assert last(path, 1, partial=False) == ([], 0)


def test_a_missing_file_is_an_empty_one(tmp_path: Path) -> None:
    assert last(tmp_path / "log", None) == ([], 0)
    assert last(tmp_path / "log", 5) == ([], 0)


@pytest.mark.parametrize("size", [_BLOCK - 1, _BLOCK, _BLOCK + 1, 2 * _BLOCK - 1, 2 * _BLOCK, 2 * _BLOCK + 1])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_as_long_as_a_block_are_whole(tmp_path: Path, size: int, end: bytes) -> None:
    path = tmp_path / "log"
    long = b"x" * (size - 1 - len(end))
    path.write_bytes(b"first\nsecond\n" + long + b"y" + end)
    third = long.decode() + "y"
    assert last(path, 1) == ([third], size + 13)
    assert last(path, 2) == (["second", third], size + 13)
    assert last(path, None) == (["first", "second", third], size + 13)


def test_only_as_much_is_read_as_the_lines_need(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 35)  # a hole of 32 GiB
        file.seek(0, 2)
        file.write(b"\na\nb\n")
    assert last(path, 2) == (["a", "b"], (1 << 35) + 5)


_CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc", "é".encode(), b"\xff", b"\r", b"\r\n", b"\x0c", b" "])).map(
    b"".join
)


@settings(deadline=None, max_examples=500)
@given(content=_CONTENT, lines=st.none() | st.integers(0, 12), block=st.integers(1, 9))
def test_the_last_lines_are_what_stands_between_newlines(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, lines: int | None, block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "newlines.log"
    path.write_bytes(content)
    with mock.patch.object(reading, "_BLOCK", block):
        found, end = last(path, lines)
    whole = [line.decode(errors="replace") for line in content.removesuffix(b"\n").split(b"\n")] if content else []
    assert found == (whole if lines is None else whole[len(whole) - min(lines, len(whole)) :])
    assert end == len(content)
    if lines is not None:
        with mock.patch.object(reading, "_BLOCK", block):
            assert tail(path, lines) == (found, end)


def test_what_is_appended_comes_in_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_POLL_SECONDS", 0)
    monkeypatch.setattr(reading, "_BLOCK", 4)
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"old\n")

    def append(path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    async def follow() -> None:
        over = asyncio.Event()
        lines = follow_all({"one": one, "two": two}, {"one": 4, "two": 0}, over)
        append(one, b"a line longer than a block\nhalf")
        assert await anext(lines) == ("one", "a line longer than a block")
        append(two, b"of a file that was missing\n\xff\n")
        assert await anext(lines) == ("two", "of a file that was missing")
        assert await anext(lines) == ("two", "\N{REPLACEMENT CHARACTER}")
        append(one, b" and half\n")
        assert await anext(lines) == ("one", "half and half")
        append(two, b"the last words\nand no more")
        over.set()
        assert await anext(lines) == ("two", "the last words")
        with pytest.raises(StopAsyncIteration):
            await anext(lines)

    asyncio.run(follow())
