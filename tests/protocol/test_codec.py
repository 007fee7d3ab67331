"""Messages and blocks of a connection: however the bytes are cut, the same ones; anything else is a ClusterError."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.codec import (
    OWN_GREETING,
    Decoder,
    Message,
    MessageDecoder,
    encode,
    encode_block,
    encode_greeting,
    encode_rejection,
    parse_greeting,
)
from tfcluster.version import PROTOCOL, __version__

REQUEST = {"method": "status", "arguments": {}}


def all_of(decoder: MessageDecoder, *, blocks: bool = False) -> list[Any]:
    """Everything that has arrived."""
    take = decoder.take_block if blocks else decoder.take_message
    return list(iter(take, None))


def agent_receives(data: bytes) -> list[Message]:
    return received(MessageDecoder(is_agent=True), data)


def command_receives(data: bytes) -> list[Message]:
    return received(MessageDecoder(is_agent=False), data)


def received(decoder: MessageDecoder, data: bytes) -> list[Message]:
    decoder.feed(data)
    return all_of(decoder)


@given(blocks=st.lists(st.binary(max_size=300), max_size=8), cuts=st.lists(st.integers(0, 3000), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_request_and_blocks(blocks: list[bytes], cuts: list[int]) -> None:
    data = encode_greeting() + encode(REQUEST) + b"".join(map(encode_block, blocks))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for pieces in ([data[start:end] for start, end in pairwise(places)], [bytes([byte]) for byte in data]):
        decoder, request, arrived = MessageDecoder(is_agent=True), None, []
        for piece in pieces:
            decoder.feed(piece)
            request = request or decoder.take_message()
            arrived += all_of(decoder, blocks=True) if request else []
        assert (request, arrived) == (REQUEST, blocks)


@hypothesis_settings(max_examples=100)
@given(data=st.binary(max_size=80), is_agent=st.booleans(), greets=st.booleans(), blocks=st.booleans())
def test_any_bytes_are_messages_and_blocks_or_an_error(data: bytes, is_agent: bool, greets: bool, blocks: bool) -> None:
    decoder = MessageDecoder(is_agent=is_agent)
    try:
        decoder.feed(encode_greeting() * greets + data + b"\n")
        all_of(decoder, blocks=blocks)
    except ClusterError:
        return


def test_a_greeting_names_both_versions() -> None:
    assert json.loads(encode_greeting()) == {"version": PROTOCOL, "tfcluster": __version__}


OWN = f"tfcluster {__version__} (protocol {PROTOCOL})"


@pytest.mark.parametrize(
    ("greeting", "command", "hint"),
    [
        ({"version": 2, "tfcluster": "0.1"}, "tfcluster 0.1 (protocol 2)", "Install"),
        ({"version": PROTOCOL + 1, "tfcluster": "9.9"}, f"tfcluster 9.9 (protocol {PROTOCOL + 1})", "`tfcluster up`"),
    ],
)
def test_an_agent_refuses_a_command_of_another_version(greeting: Any, command: str, hint: str) -> None:
    with pytest.raises(ClusterError) as caught:
        agent_receives(json.dumps(greeting).encode() + b"\n")
    assert caught.value.message == f"the cluster's agent is {OWN}, and this command is {command}"
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("version", [str(PROTOCOL), True, None, math.inf, math.nan, float(PROTOCOL), [PROTOCOL]])
def test_what_is_no_greeting_is_refused(version: Any) -> None:
    with pytest.raises(ClusterError, match="a line that is not a greeting arrived"):
        agent_receives(json.dumps({"version": version, "tfcluster": [version]}).encode() + b"\n")


def test_a_command_refuses_an_agent_of_another_version() -> None:
    with pytest.raises(ClusterError, match=re.escape(f"(protocol 1000), and this command is {OWN}")) as caught:
        command_receives(b'{"version": 1000, "tfcluster": "9.9"}\n')
    assert "Install tfcluster 9.9 or newer" in caught.value.hint


def test_the_first_line_of_an_agent_tells_its_version_although_it_refuses_the_connection() -> None:
    error = ClusterError("another version")
    assert parse_greeting(encode_rejection(error)) == OWN_GREETING
    older = parse_greeting(json.dumps({"error": error.to_json(), "version": 2, "tfcluster": "0.1"}).encode())
    assert (str(older), older.is_older) == ("0.1 (protocol 2)", True)


def test_a_command_raises_the_error_by_which_an_agent_refuses_it() -> None:
    error = ClusterError("another version", hint="use that", exit_code=ExitCode.UNHEALTHY)
    with pytest.raises(ClusterError) as caught:
        command_receives(encode_rejection(error))
    assert caught.value.to_json() == error.to_json()
    assert command_receives(encode_greeting() + encode_rejection(error))[0]["error"] == error.to_json()
    # This is how an agent of version 2 answers the greeting, and what a command of version 2 reads.
    assert json.loads(encode_rejection(error))["error"] == error.to_json()
    with pytest.raises(ClusterError, match="the agent refused the connection"):
        command_receives(b'{"error": 1}\n')


@pytest.mark.parametrize("line", [b"x", b"[]", b"1"])
def test_a_line_that_is_not_a_message_is_an_error(line: bytes) -> None:
    with pytest.raises(ClusterError, match="a line that is not a message arrived"):
        agent_receives(encode_greeting() + line + b"\n")


@pytest.mark.parametrize("size", [b"-1", b"true", b"null", b'"x"', b"1.0", b"%d" % (settings.RPC_BLOCK_MAX_BYTES + 1)])
def test_a_block_of_no_size_is_an_error(size: bytes) -> None:
    decoder = MessageDecoder(is_agent=True)
    decoder.feed(b'{"block": %s}\n' % size)
    with pytest.raises(ClusterError, match="a block of the size"):
        decoder.take_block()


def test_what_is_no_line_before_a_block_is_an_error_before_its_end() -> None:
    decoder = MessageDecoder(is_agent=True)
    decoder.feed(b"x" * (settings.RPC_BLOCK_LINE_BYTES + 1))
    with pytest.raises(ClusterError, match="a line that is not a block arrived"):
        decoder.take_block()


def test_errors_contain_nothing_of_a_request() -> None:
    for line in (b'{"method": "run", "arguments": {"TOKEN": "hunter2"', b'["hunter2"]'):
        with pytest.raises(ClusterError) as caught:
            agent_receives(encode_greeting() + line + b"\n")
        assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(("is_agent", "limit"), [(True, 100), (False, 200)])
def test_a_line_that_grows_too_long_is_refused_before_its_end(
    monkeypatch: pytest.MonkeyPatch, is_agent: bool, limit: int
) -> None:
    """A response may be longer than a request."""
    monkeypatch.setattr(settings, "RPC_REQUEST_MAX_BYTES", 100)
    monkeypatch.setattr(settings, "RPC_LINE_MAX_BYTES", 200)
    decoder = MessageDecoder(is_agent=is_agent)
    assert received(decoder, encode_greeting() + b"x" * limit) == []
    with pytest.raises(ClusterError, match=f"longer than {limit} bytes"):
        received(decoder, b"x")


def test_a_request_of_the_limit_passes_although_a_block_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RPC_REQUEST_MAX_BYTES", 100)
    decoder = MessageDecoder(is_agent=True)
    decoder.feed(encode_greeting() + encode(REQUEST) + encode_block(b"x" * 1000))
    assert decoder.take_message() == REQUEST
    assert decoder.take_block() == b"x" * 1000


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
