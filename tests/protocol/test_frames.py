"""The frames of a connection: however the bytes are cut, the same frames; anything else is a ClusterError."""

from __future__ import annotations

import json
import re
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
    Frame,
    FrameDecoder,
    FrameKind,
    encode_chunk,
    encode_frame,
    encode_greeting,
    encode_rejection,
    parse_greeting,
)
from tfcluster.version import PROTOCOL, __version__

REQUEST = Frame(1, FrameKind.REQUEST, {"method": "status", "arguments": {}})


def agent_receives(data: bytes) -> list[Frame]:
    return FrameDecoder(is_agent=True).feed(data)


def command_receives(data: bytes) -> list[Frame]:
    return FrameDecoder(is_agent=False).feed(data)


@given(
    chunks=st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=300)), max_size=8),
    cuts=st.lists(st.integers(0, 3000), max_size=12),
)
def test_any_split_of_the_bytes_gives_the_same_frames(chunks: list[tuple[int, bytes]], cuts: list[int]) -> None:
    frames = [REQUEST]
    data = encode_greeting() + encode_frame(REQUEST)
    for number, chunk in chunks:
        frames += [Frame(number, FrameKind.CHUNK, len(chunk), chunk), Frame(number, FrameKind.CANCEL)]
        data += encode_chunk(number, chunk) + encode_frame(frames[-1])
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = FrameDecoder(is_agent=True)
    assert [frame for start, end in pairwise(places) for frame in decoder.feed(data[start:end])] == frames
    decoder = FrameDecoder(is_agent=True)
    assert [frame for byte in data for frame in decoder.feed(bytes([byte]))] == frames


@hypothesis_settings(max_examples=100)
@given(data=st.binary(max_size=80), is_agent=st.booleans(), greets=st.booleans())
def test_any_bytes_are_frames_or_an_error(data: bytes, is_agent: bool, greets: bool) -> None:
    decoder = FrameDecoder(is_agent=is_agent)
    try:
        decoder.feed(encode_greeting() * greets + data + b"\n")
    except ClusterError:
        return


def test_a_greeting_names_both_versions() -> None:
    assert json.loads(encode_greeting(is_up=True)) == {"version": PROTOCOL, "tfcluster": __version__, "up": True}


OWN = f"tfcluster {__version__} (protocol {PROTOCOL})"


@pytest.mark.parametrize(
    ("greeting", "command", "hint"),
    [
        ({"version": 2, "call": "status", "arguments": {}}, "tfcluster 0.1.0 (protocol 2)", "Install"),
        ({"version": PROTOCOL + 1, "tfcluster": "9.9"}, f"tfcluster 9.9 (protocol {PROTOCOL + 1})", "`tfcluster up`"),
    ],
)
def test_an_agent_refuses_a_command_of_another_version(greeting: Any, command: str, hint: str) -> None:
    with pytest.raises(ClusterError) as caught:
        agent_receives(json.dumps(greeting).encode() + b"\n")
    assert caught.value.message == f"the cluster's agent is {OWN}, and this command is {command}"
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("greeting", [{"version": str(PROTOCOL)}, {"version": True}, {}])
def test_what_is_no_greeting_is_refused(greeting: Any) -> None:
    with pytest.raises(ClusterError, match="a line that is not a greeting arrived"):
        agent_receives(json.dumps(greeting).encode() + b"\n")


def test_a_command_refuses_an_agent_of_another_version() -> None:
    with pytest.raises(ClusterError, match=re.escape(f"(protocol 1000), and this command is {OWN}")) as caught:
        command_receives(b'{"version": 1000, "tfcluster": "9.9"}\n')
    assert "Install tfcluster 9.9 or newer" in caught.value.hint


def test_the_first_line_of_an_agent_tells_its_version_although_it_refuses_the_connection() -> None:
    error = ClusterError("another version")
    assert parse_greeting(encode_rejection(error)) == OWN_GREETING
    first_release = parse_greeting(json.dumps({"error": error.to_json()}).encode())
    assert (str(first_release), first_release.is_older) == ("0.1.0 (protocol 27)", True)


def test_a_command_raises_the_error_by_which_an_agent_refuses_it() -> None:
    error = ClusterError("another version", hint="use that", exit_code=ExitCode.UNHEALTHY)
    for before in (b"", encode_greeting()):
        with pytest.raises(ClusterError) as caught:
            command_receives(before + encode_rejection(error))
        assert caught.value.to_json() == error.to_json()
    # This is how an agent of version 2 answers the greeting, and what a command of version 2 reads.
    assert json.loads(encode_rejection(error))["error"] == error.to_json()
    with pytest.raises(ClusterError, match="the agent refused the connection"):
        command_receives(b'{"error": 1}\n')


@pytest.mark.parametrize(
    "line",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"id": 1, "kind": "request"}',
        b'{"id": true, "kind": "cancel", "body": null}',
        b'{"id": "1", "kind": "cancel", "body": null}',
        b'{"id": 1, "kind": "cancel", "body": null, "more": 1}',
        b'{"id": 1, "kind": "event", "body": {}}',
        b'{"id": 1, "kind": [], "body": {}}',
        b'{"id": 1, "kind": "chunk", "body": -1}',
        b'{"id": 1, "kind": "chunk", "body": true}',
        b'{"id": 1, "kind": "chunk", "body": %d}' % (settings.RPC_CHUNK_MAX_BYTES + 1),
        b'{"id": 1, "kind": "chunk", "body": null}',
    ],
)
def test_a_line_that_is_not_a_frame_is_an_error(line: bytes) -> None:
    with pytest.raises(ClusterError):
        agent_receives(encode_greeting() + line + b"\n")


@pytest.mark.parametrize("size", [-1, settings.RPC_UPLOAD_WINDOW_BYTES + 1, None, "x"])
def test_a_wrong_window_is_an_error(size: Any) -> None:
    with pytest.raises(ClusterError, match="a window with the length"):
        command_receives(encode_greeting() + encode_frame(Frame(1, FrameKind.WINDOW, size)))


def test_errors_contain_nothing_of_a_request() -> None:
    for line in (b'{"id": 1, "kind": "request", "body": {"TOKEN": "hunter2"', b'{"body": "hunter2"}'):
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
    decoder = FrameDecoder(is_agent=is_agent)
    assert decoder.feed(encode_greeting() + b"x" * limit) == []
    with pytest.raises(ClusterError, match=f"longer than {limit} bytes"):
        decoder.feed(b"x")


def test_a_line_of_the_limit_passes_although_the_bytes_of_a_chunk_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RPC_REQUEST_MAX_BYTES", 100)
    assert len(agent_receives(encode_greeting() + encode_chunk(1, b"x" * 1000))) == 1
