"""JSON values into typed ones, records and errors: what does not fit is named with its place."""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Optional

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.serialization import FORMAT, DecodeError, NewerFormatError, decode, from_stored, to_stored
from tfcluster.records import record_class


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    number: float
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    flag: bool
    path: Path
    inner: Inner | None
    old: Optional[int]  # noqa: UP045 - both notations are understood
    either: int | str
    many: tuple[Inner, ...]
    by_name: dict[str, tuple[int, ...]]
    env: Mapping[str, str]
    anything: Any = None
    more: tuple[str, ...] = field(default=())
    pair: tuple[str, int] = ("a", 1)
    listed: list[int] = field(default_factory=list)


VALUE = Outer("ü", 1, True, Path("/a"), Inner(0.5), None, "x", (Inner(1, Colour.BLUE),), {"a": (1, 2)}, {"A": "b"}, [1])


def as_json(value: Outer) -> Any:
    return json.loads(json.dumps(asdict(value), default=str))


def test_a_value_is_restored_from_its_json_form() -> None:
    assert decode(Outer, as_json(VALUE)) == VALUE
    assert decode(tuple[int, ...], [1, 2]) == (1, 2)
    assert isinstance(decode(float, 1), float)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["name"], 1, "name: expected a string, got 1"),
        (["name"], "\ud800", "name: expected text, got '\\ud800'"),
        (["count"], "x", "count: expected an integer, got 'x'"),
        (["count"], True, "count: expected an integer, got True"),
        (["count"], 1.0, "count: expected an integer, got 1.0"),
        (["flag"], 1, "flag: expected true or false, got 1"),
        (["path"], "\0", "path: expected a path, got '\\x00'"),
        (["inner"], 5, "inner: expected an object, got 5"),
        (["inner", "number"], None, "inner.number: expected a number, got None"),
        (["inner", "number"], float("inf"), "inner.number: expected a finite number, got inf"),
        (["inner", "number"], 10**400, f"inner.number: expected a finite number, got {10**59}"),
        (["inner", "colour"], "green", "inner.colour: expected one of 'red', 'blue', got 'green'"),
        (["inner", "colour"], [], "inner.colour: expected one of 'red', 'blue', got a list"),
        (["inner", "size"], 1, "inner.size: unknown; expected number, colour"),
        (["old"], "x", "old: expected an integer, got 'x'"),
        (["either"], [], "either: expected an integer, got a list"),
        (["many"], {}, "many: expected a list, got a dict"),
        (["many", 0, "number"], {}, "many.0.number: expected a number, got a dict"),
        (["by_name", "a"], [1, "x"], "by_name.a.1: expected an integer, got 'x'"),
        (["pair"], ["a"], "pair: expected a list of 2, got a list"),
        (["pair", 1], "b", "pair.1: expected an integer, got 'b'"),
        (["listed"], [1, None], "listed.1: expected an integer, got None"),
        (["env", "A"], 1, "env.A: expected a string, got 1"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(place: list[Any], value: Any, message: str) -> None:
    whole = inner = as_json(VALUE)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(DecodeError) as caught:
        decode(Outer, whole)
    assert str(caught.value) == message


def test_a_missing_field_is_named_although_it_has_a_default_value() -> None:
    whole = as_json(VALUE)
    del whole["inner"]["colour"]
    with pytest.raises(DecodeError, match=r"^inner\.colour: missing$"):
        decode(Outer, whole)
    with pytest.raises(DecodeError, match=r"^a: expected an object, got a list$"):
        decode(Outer, [], "a")


def test_a_type_without_a_decoder_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="no decoder for"):
        decode(set[int], [])


def test_a_stored_document_has_a_format_and_a_newer_one_is_not_damage() -> None:
    handle = ProcessHandle(1, 2)
    assert from_stored(ProcessHandle, to_stored(handle)) == handle
    with pytest.raises(DecodeError, match=r"^start_time: missing$"):
        from_stored(ProcessHandle, {"format": FORMAT, "pid": 1})
    with pytest.raises(DecodeError, match=r"^format: "):
        from_stored(ProcessHandle, {"pid": 1, "start_time": 2})
    with pytest.raises(NewerFormatError, match=rf"its format is 99, and this version \(.+\) reads format {FORMAT}"):
        from_stored(ProcessHandle, {"format": 99, "handle": "elsewhere"})
    with pytest.raises(ValueError, match=r"its format is 1, of an earlier version") as caught:
        from_stored(ProcessHandle, {"format": 1, "pid": 1, "start_time": 2})
    assert not isinstance(caught.value, NewerFormatError)


def test_what_an_older_version_has_stored_has_defaults_and_what_a_newer_one_has_added_is_ignored() -> None:
    stored = to_stored(VALUE)
    for each in (stored, stored["inner"]):
        each["added"] = {"a": []}
    assert from_stored(Outer, stored) == VALUE
    del stored["inner"]["colour"], stored["pair"], stored["more"]
    assert from_stored(Outer, stored) == VALUE


def test_the_exit_codes_are_those_of_the_contract() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        **{"DONE": 0, "FAILED": 1, "USAGE": 2, "NOT_RUNNING": 3, "UNHEALTHY": 4, "UNREACHABLE": 5},
        **{"TIMED_OUT": 124, "INTERRUPTED": 130, "TERMINATED": 143},
    }


@pytest.mark.parametrize("code", list(ExitCode))
def test_an_error_survives_its_way_from_the_agent(code: ExitCode) -> None:
    error = ClusterError("two\nlines", hint="what to type", exit_code=code)
    found = ClusterError.from_json(json.loads(json.dumps(error.to_json())))
    assert (found.message, found.hint, found.exit_code) == ("two\nlines", "what to type", code)
    assert isinstance(found.exit_code, ExitCode)


def test_an_error_is_a_failure_without_a_hint_unless_told_otherwise_and_a_traceback_shows_it() -> None:
    error = ClusterError("what happened")
    assert (str(error), error.hint, error.exit_code) == ("what happened", "", ExitCode.FAILED)
    error = ClusterError("there is no cluster", hint="`tfcluster up` starts one.")
    assert traceback.format_exception_only(error)[-1].endswith(
        "ClusterError: there is no cluster\nhint: `tfcluster up` starts one.\n"
    )
    assert str(ClusterError("there is no cluster")) == "there is no cluster"


@record_class(frozen=True)
class Point:
    """A point, as `record_class` makes it."""

    x: int
    y: int = 0
    seen: int = field(default=0, compare=False)
    secret: str = field(default="", repr=False)


Same = dataclasses.make_dataclass(
    "Point",
    [
        ("x", int),
        ("y", int, field(default=0)),
        ("seen", int, field(default=0, compare=False)),
        ("secret", str, field(default="", repr=False)),
    ],
    frozen=True,
)


def test_a_record_is_compared_hashed_and_shown_as_a_frozen_dataclass_is_also_a_subclass() -> None:
    assert Point(1, seen=1) == Point(1, seen=2)
    assert Point(1) != Point(2)
    assert Point(1).__eq__((1, 0)) is NotImplemented
    for values in ({"x": 1}, {"x": 2, "y": 3, "seen": 4, "secret": "s"}):
        assert hash(Point(**values)) == hash(Same(**values))
        assert repr(Point(**values)) == repr(Same(**values))
        assert dataclasses.asdict(Point(**values)) == dataclasses.asdict(Same(**values))
    assert dataclasses.replace(Point(1), y=2) == Point(1, 2)

    @record_class(frozen=True)
    class Named(Point):
        """A point with a name."""

        name: str = ""

    assert Named(1, name="a") != Named(1, name="b")
    assert Named(1) != Point(1)
