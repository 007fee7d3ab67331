"""Frozen dataclasses whose classes are made quickly are like those of the standard library."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from pathlib import Path

import tfcluster
from tfcluster.records import record_class


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


def test_what_every_command_imports_is_made_quickly() -> None:
    package = Path(tfcluster.__file__).parent
    modules = [path for folder in ("core", "protocol") for path in (package / folder).rglob("*.py")]
    assert len(modules) > 20
    assert [path for path in modules if "@dataclass(frozen=True" in path.read_text()] == []
