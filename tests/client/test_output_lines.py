"""Lines of a script's output, however it arrives."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster import settings
from tfcluster.client.runs.runs import OutputLines


def lines_of(*parts: tuple[str, bytes]) -> list[Any]:
    """The lines, as pairs of stream and text, of what arrives in these parts."""
    lines = OutputLines()
    events = [
        {"event": "output", "stream": stream, "data": data.decode(errors="surrogateescape")} for stream, data in parts
    ]
    found = [line for event in (*events, {"event": "result"}) for line in lines.convert(event)]
    assert found.pop() == {"event": "result"}
    return [(each["stream"], each["line"]) for each in found]


def test_lines_are_made_of_parts_for_each_stream() -> None:
    parts = [("stdout", b"o"), ("stderr", b"err\n\xc3"), ("stdout", b"ne\ntwo\n"), ("stderr", b"\xa9\xff")]
    assert lines_of(*parts) == [("stderr", "err"), ("stdout", "one"), ("stdout", "two"), ("stderr", "é\ufffd")]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17])
def test_a_long_line_comes_in_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(settings, "RUN_OUTPUT_LINE_MAX_BYTES", 8)
    line = b"x" * size + b"\nend"
    for found in (lines_of(("stdout", line)), lines_of(*(("stdout", bytes([each])) for each in line))):
        assert "".join(text for _, text in found) == "x" * size + "end"
        assert max(len(text) for _, text in found) <= 8


def test_other_events_are_passed_on() -> None:
    assert list(OutputLines().convert({"event": "metric"})) == [{"event": "metric"}]
