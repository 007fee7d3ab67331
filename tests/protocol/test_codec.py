"""Messages to and from bytes: however the bytes are cut, the same messages; anything else a ClusterError."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.protocol.codec import Decoder, Message, encode

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_MESSAGES = st.lists(st.dictionaries(st.text(), _VALUES, max_size=4), max_size=5)


def decoded(pieces: Iterable[bytes]) -> list[Message]:
    decoder = Decoder()
    return [message for piece in pieces for message in decoder.feed(piece)]


@hypothesis_settings(max_examples=40)
@given(messages=_MESSAGES, cuts=st.lists(st.integers(0, 2000), max_size=10))
def test_any_split_of_the_bytes_gives_the_same_messages(messages: list[Message], cuts: list[int]) -> None:
    data = b"".join(map(encode, messages))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    assert decoded(pieces) == messages
    assert decoded(bytes([byte]) for byte in data) == messages


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_support_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"event": "metric", "loss": [number]})


NOT_JSON = [b"", b"x", b"{", b"{'a': 1}", b'{"a":1}}', b"\xff\xfe\xfd", b'{"a": "\xff"}', b"\0", b"x" * 5000]
NO_OBJECTS = [b"[]", b"[{}]", b"1", b"null", b'"{}"', b"true", b"NaN"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        *((line, "a line that is not JSON") for line in (*NOT_JSON, b"[" * 100_000, b'{"a":' * 100_000)),
        *((line, "a message that is not an object") for line in NO_OBJECTS),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_a_line_that_is_no_message_is_an_error_that_shows_its_start(line: bytes, what: str) -> None:
    with pytest.raises(ClusterError) as caught:
        decoded([line + b"\n"])
    assert caught.value.message == f"{what} arrived: {line[:80]!r}"


@hypothesis_settings(max_examples=100)
@given(data=st.binary(max_size=60), cut=st.integers(0, 60))
def test_any_bytes_are_messages_or_a_cluster_error(data: bytes, cut: int) -> None:
    try:
        messages = decoded([data[:cut], data[cut:]])
    except ClusterError:
        return
    assert len(messages) == data.count(b"\n")


def test_a_line_that_grows_too_long_is_refused_before_its_end_and_one_of_the_limit_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = {"a": "x" * 90}
    data = encode(message)
    monkeypatch.setattr(settings, "RPC_LINE_MAX_BYTES", len(data) - 1)
    assert decoded([data[:-1], b"\n"]) == [message]
    decoder = Decoder()
    assert decoder.feed(b"x" * (len(data) - 1)) == []
    with pytest.raises(ClusterError, match=f"a message longer than {len(data) - 1} bytes arrived"):
        decoder.feed(b"x")
    with pytest.raises(ClusterError):
        decoded([encode({"a": "x" * 91})])


def test_a_topology_of_a_thousand_tasks_is_within_the_limit() -> None:
    task = {
        "job": "worker", "index": 999, "host": "h" * 63, "address_host": "h" * 63, "port": 65535,
        "cpus": 256, "gpus": 8, "env": {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
    }  # fmt: skip
    assert 16 * len(encode({"tasks": [task] * 1000})) < settings.RPC_LINE_MAX_BYTES
