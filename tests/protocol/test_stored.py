"""Documents on disk: what a newer version has written is newer, not damaged; the wire stays strict."""

from __future__ import annotations

import pytest

from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.serialization import DecodeError, NewerFormatError, decode, from_stored, to_stored


def test_the_wire_stays_strict() -> None:
    for value in ({"pid": 1}, {"pid": 1, "start_time": 2, "added": 3}):
        with pytest.raises(DecodeError):
            decode(ProcessHandle, value)


def test_a_field_without_a_default_is_required() -> None:
    with pytest.raises(DecodeError, match=r"^start_time: missing$"):
        from_stored(ProcessHandle, {"pid": 1}, 1)


def test_a_document_without_a_format_has_the_first_one() -> None:
    handle = ProcessHandle(1, 2)
    assert from_stored(ProcessHandle, {"pid": 1, "start_time": 2}, 1) == handle
    assert from_stored(ProcessHandle, to_stored(handle, 2), 2) == handle
    assert from_stored(ProcessHandle, to_stored(handle, 1), 2) == handle


def test_a_newer_format_is_not_damage() -> None:
    with pytest.raises(NewerFormatError, match=r"its format is 3, and this version \(.+\) reads formats up to 2"):
        from_stored(ProcessHandle, {"format": 3, "handle": "elsewhere"}, 2)
