"""What travels between commands and agents has not changed without another `PROTOCOL` in tfcluster/version.py.

tests/protocol/wire.txt has that number, the types of each method, and the fields of each of these types and of those
in them. `pytest --update` writes it anew if the number has grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from tests.conftest import ROOT
from tests.protocol.test_api import REQUESTS
from tfcluster.version import PROTOCOL

WIRE = ROOT / "tests" / "protocol" / "wire.txt"
ADVICE = "a type has changed: increase PROTOCOL, and run `pytest --update tests/protocol/test_wire.py`"


def name_of(kind: Any) -> str:
    """Return a type as it is written in code."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " | ".join(sorted(map(name_of, arguments)))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(name_of, arguments))}]"
    names = {NoneType: "None", ...: "..."}
    return names[kind] if kind in names else str(kind.__name__)


def types_in(kind: Any) -> Iterator[Any]:
    """Yield a type, and all types that it consists of."""
    yield kind
    for each in get_args(kind) or (get_type_hints(kind).values() if is_dataclass(kind) else ()):
        yield from types_in(each)


def describe(kind: Any) -> list[str]:
    """Return the lines about an enumeration or a dataclass; nothing about another type, which its name describes."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [f"{kind.__name__}: {', '.join(repr(each.value) for each in kind)}"]
    if not is_dataclass(kind):
        return []
    hints = get_type_hints(kind)
    return [name_of(kind), *(f"    {each.name}: {name_of(hints[each.name])}" for each in fields(kind) if each.init)]


def describe_wire() -> str:
    """Return the content of wire.txt."""
    methods = [
        f"{each.method}: {each.__name__} -> {name_of(each.event_type)}..., {name_of(each.reply_type)}"
        for each in REQUESTS
    ]
    messages = [whole for each in REQUESTS for whole in (each, each.event_type, each.reply_type)]
    kinds = sorted({each for whole in messages for each in types_in(whole)}, key=name_of)
    return "\n".join(["PROTOCOL", *methods, *(line for kind in kinds for line in describe(kind))]) + "\n"


def test_a_type_that_travels_changes_only_with_the_protocol(request: pytest.FixtureRequest) -> None:
    found = describe_wire().replace("PROTOCOL", f"PROTOCOL {PROTOCOL}", 1)
    written = WIRE.read_text()
    number = int(written.partition("\n")[0].removeprefix("PROTOCOL "))
    if request.config.getoption("--update") and number < PROTOCOL:
        WIRE.write_text(found)
        return
    assert written.partition("\n")[2] == found.partition("\n")[2], ADVICE
    assert number == PROTOCOL, "run `pytest --update tests/protocol/test_wire.py`"
