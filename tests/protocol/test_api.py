"""Every request, reply and event is restored from its JSON form; a wrong argument is an error that names it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from typing import Any, NoReturn, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.strategies import JSON, values_of
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Request, decode_request, decode_response, encode_request
from tfcluster.protocol.api import cluster as _cluster  # noqa: F401
from tfcluster.protocol.api import files as _files  # noqa: F401
from tfcluster.protocol.api import logs as _logs  # noqa: F401
from tfcluster.protocol.api import processes as _processes  # noqa: F401
from tfcluster.protocol.api import runs as _runs  # noqa: F401
from tfcluster.protocol.api import view as _view  # noqa: F401
from tfcluster.protocol.api.cluster import DownRequest, RestartRequest, StatusRequest
from tfcluster.protocol.serialization import decode, to_json

REQUESTS: list[Any] = sorted(Request.__subclasses__(), key=lambda kind: kind.method)
MESSAGES: list[Any] = list(
    dict.fromkeys(
        each
        for kind in REQUESTS
        for whole in (kind, kind.event_type, kind.reply_type)
        for each in (get_args(whole) or (whole,))
        if each is not NoReturn
    )
)


def as_sent(value: Any) -> Any:
    return json.loads(json.dumps(to_json(value), allow_nan=False))


def comparable(value: Any) -> Any:
    """Errors are compared by their content."""
    return json.dumps(to_json(value), sort_keys=True)


def test_every_method_has_one_request() -> None:
    assert len({kind.method for kind in REQUESTS}) == len(REQUESTS)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_is_restored_from_its_json_form(kind: Any) -> None:
    @settings(max_examples=8)
    @given(value=values_of(kind))
    def check(value: Any) -> None:
        restored = decode(kind, as_sent(value))
        assert type(restored) is kind
        assert comparable(restored) == comparable(value)
        if "ClusterError" not in repr(value):  # errors are equal only to themselves
            assert restored == value

    check()


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.method)
def test_any_arguments_are_a_request_or_an_error(kind: Any) -> None:
    names = [field.name for field in fields(kind)]

    @settings(max_examples=12)
    @given(arguments=JSON | st.fixed_dictionaries(dict.fromkeys(names, JSON)))
    def check(arguments: Any) -> None:
        with contextlib.suppress(ClusterError):
            assert isinstance(decode_request({"method": kind.method, "arguments": arguments}), kind)

    check()


def test_a_request_names_its_method_and_arguments() -> None:
    body = encode_request(RestartRequest(("ps:0",), 1.5))
    assert body == {"method": "restart", "arguments": {"tasks": ["ps:0"], "grace": 1.5}}
    assert decode_request(body) == RestartRequest(("ps:0",), 1.5)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"tasks": []}, "grace: missing"),
        ({"tasks": [], "grace": 1, "speed": 2}, "speed: unknown; expected tasks, grace"),
        ({"tasks": ["ps:0", 1], "grace": 1}, "tasks.1: expected a string"),
        ({"tasks": [], "grace": "sesame"}, "grace: expected a number"),
        (None, "expected an object"),
    ],
)
def test_a_wrong_argument_is_named_without_its_value(arguments: Any, problem: str) -> None:
    with pytest.raises(ClusterError) as caught:
        decode_request({"method": "restart", "arguments": arguments})
    assert caught.value.message == f"request 'restart': {problem}"


@pytest.mark.parametrize("method", [None, [], "explode", "x" * 10_000])
def test_a_body_without_a_known_method_is_not_a_request(method: Any) -> None:
    for body in ({"method": method}, method, {}, "status"):
        with pytest.raises(ClusterError, match="not a request: ") as caught:
            decode_request(body)
        assert len(caught.value.message) < 300


def test_a_wrong_reply_or_event_is_an_error_of_the_agent() -> None:
    with pytest.raises(ClusterError, match="the agent sent a wrong reply to the request 'down': warning: expected"):
        decode_response(DownRequest, {"warning": 1}, is_reply=True)
    with pytest.raises(ClusterError, match="the agent sent a wrong event to the request 'status': unexpected"):
        decode_response(StatusRequest, {}, is_reply=False)
