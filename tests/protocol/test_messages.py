"""Requests of another version or of an unknown call are refused with words; the three kinds of answer."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol import api
from tfcluster.protocol.api import VERSION, Method, Request
from tfcluster.protocol.codec import Decoder, encode


@pytest.mark.parametrize("call", list(Method))
def test_a_request_survives_the_wire(call: Method) -> None:
    request = Request(call, {"tasks": ["worker:1"], "lines": None})
    [message] = Decoder().feed(encode(request.to_message()))
    assert Request.from_message(message) == request


def test_a_request_says_its_version() -> None:
    assert Request(Method.STATUS, {}).to_message() == {"version": VERSION, "call": "status", "arguments": {}}


@pytest.mark.parametrize("version", [VERSION + 1, VERSION - 1, str(VERSION), None])
def test_another_version_is_refused_before_anything_else_is_read(version: Any) -> None:
    with pytest.raises(ClusterError) as caught:
        Request.from_message({"version": version, "call": "of another time"})
    assert caught.value.message == (
        f"the agent speaks version {VERSION} of the protocol, this command version {version}"
    )
    assert "another version of tfcluster" in caught.value.hint


def test_a_request_without_a_version_is_refused() -> None:
    with pytest.raises(ClusterError, match="version None"):
        Request.from_message({"call": "status", "arguments": {}})


@pytest.mark.parametrize(
    "rest",
    [
        {"call": "explode", "arguments": {}},
        {"call": "STATUS", "arguments": {}},
        {"call": None, "arguments": {}},
        {"call": [], "arguments": {}},
        {"arguments": {}},
        {"call": "status"},
        {"call": "status", "arguments": None},
        {"call": "status", "arguments": 1},
        {"call": "status", "arguments": ["ab", "c"]},
        {"call": "explode", "arguments": {"env": {"TOKEN": "a secret"}}},
        {},
    ],
)
def test_what_is_no_request_is_refused(rest: dict[str, Any]) -> None:
    message = {"version": VERSION, **rest}
    with pytest.raises(ClusterError) as caught:
        Request.from_message(message)
    assert caught.value.message == f"not a request: {message.get('call')!r}"


def test_a_vast_message_is_not_repeated_in_full() -> None:
    with pytest.raises(ClusterError) as caught:
        Request.from_message({"version": VERSION, "call": "x" * 10_000})
    assert len(caught.value.message) < 300


def test_the_lines_of_an_answer() -> None:
    problem = ClusterError("what", hint="why", exit_code=ExitCode.NOT_RUNNING)
    assert api.event({"a": 1}) == {"event": {"a": 1}}
    assert api.reply({"a": 1}) == {"reply": {"a": 1}}
    assert api.error(problem) == {"error": {"message": "what", "hint": "why", "exit_code": 3}}
