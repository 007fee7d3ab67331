"""Convert dataclasses to and from JSON values; decoding validates the type of each field and names the path of errors.

One generic pair of functions serves the RPC protocol, the journal and most of what `-o json` prints. The decoder of a
class is built when it is used first, because resolving type hints takes longer than importing the class.

Documents on disk may be of another version of tfcluster, or be read by one. All have one format, a number that grows
only if an older version would misunderstand a document: a field is missing or has another meaning, or an enumeration
has another value. A new field with a default value needs no new format, because readers give missing fields their
defaults and ignore unknown ones. The files next to a journal that only agents read, such as those with secret values,
have no number: an agent that cannot read the journal does not touch them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.records import record_class
from tfcluster.version import PROTOCOL, __version__

T = TypeVar("T")

# The name of each plain type in error messages, and the Python types of its JSON values.
_PLAIN: dict[type, tuple[str, tuple[Any, ...]]] = {
    str: ("a string", (str,)),
    bool: ("true or false", (bool,)),
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
}


class DecodeError(ValueError):
    """Raised when a JSON value does not match its type."""

    def __init__(self, json_path: str, problem: str, value: str = "") -> None:
        # The path is such as `tasks.0.port`, and empty for the top-level value; the value may be secret.
        self.without_value = f"{json_path}: {problem}" if json_path else problem
        super().__init__(f"{self.without_value}, got {value}" if value else self.without_value)


def to_json(value: Any) -> Any:
    """Return the JSON value from which `decode` restores a value of a type that `decode` accepts, or a set.

    Any other type raises a TypeError.
    """
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if kind in (list, tuple, set, frozenset):
        return [to_json(each) for each in value]
    if isinstance(value, Mapping):
        return {name: to_json(each) for name, each in value.items()}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(kind):
        return {name: to_json(getattr(value, name)) for name in _field_names(kind)}
    if isinstance(value, ClusterError):
        return value.to_json()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON value for a {kind.__name__}")


_JSON_TYPES = frozenset({str, int, float, bool, NoneType})


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.init)


def decode(kind: type[T], value: Any, json_path: str = "", *, lenient: bool = False) -> T:
    """Decode a JSON value, as `json.loads` returned it, into a value of a type.

    On the wire every field of a dataclass must be present, including fields that have a default value, and unknown
    fields are errors, because both sides speak the same version of the protocol.

    Args:
        kind: A dataclass, ClusterError, an Enum, Path, str, int, float, bool, or None; a union of such types,
            tuple[X, ...], tuple[X, Y], Collection[X] (as a tuple), list[X], dict[str, X] or Mapping[str, X]. Any
            accepts every value unchanged.
        lenient: Give missing fields their default values, and ignore unknown ones, at every level: another version of
            tfcluster may have written the data; see `protocol.serialization`.
    """
    decoded: T = _decoder(cast(Any, kind), lenient)(value, json_path)
    return decoded


_Decoder = Callable[[Any, str], Any]


@cache
def _decoder(kind: Any, lenient: bool) -> _Decoder:
    if kind in _PLAIN:
        return _plain(kind)
    if kind in (None, NoneType):
        return _none
    if kind is Any:
        return lambda value, json_path: value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union(tuple(_decoder(each, lenient) for each in arguments))
    if origin is list:
        return _list(_decoder(arguments[0], lenient), list)
    if origin is Collection or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        return _list(_decoder(arguments[0], lenient), tuple)
    if origin is tuple:
        return _tuple(tuple(_decoder(each, lenient) for each in arguments))
    if origin in (dict, Mapping) and arguments[0] is str:
        return _dict(_decoder(arguments[1], lenient))
    if is_dataclass(kind):
        return _dataclass(kind, lenient)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if kind is Path:
        return _path
    if kind is ClusterError:
        return _error
    raise TypeError(f"no decoder for {kind!r}")


def _plain(kind: type) -> _Decoder:
    name, types = _PLAIN[kind]

    def decode_plain(value: Any, json_path: str) -> Any:
        # In Python, bool is a subclass of int.
        if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
            raise _mismatch(json_path, name, value)
        if kind is str and not _is_text(value):
            raise _mismatch(json_path, "text", value)
        if kind is not float:
            return value
        try:
            number = float(value)
        except OverflowError:  # an integer of more than 308 digits
            number = math.inf
        if not math.isfinite(number):
            raise _mismatch(json_path, "a finite number", value)
        return number

    return decode_plain


def _none(value: Any, json_path: str) -> None:
    if value is not None:
        raise _mismatch(json_path, "null", value)


def _union(members: tuple[_Decoder, ...]) -> _Decoder:
    def decode_union(value: Any, json_path: str) -> Any:
        if value is None and _none in members:
            return None
        problem: DecodeError | None = None
        for member in members:
            if member is not _none:
                try:
                    return member(value, json_path)
                except DecodeError as error:
                    problem = problem or error
        assert problem is not None, "a union has a member besides None"
        raise problem

    return decode_union


def _list(member: _Decoder, kind: type[list[Any]] | type[tuple[Any, ...]]) -> _Decoder:
    def decode_list(value: Any, json_path: str) -> Any:
        if not isinstance(value, list):
            raise _mismatch(json_path, "a list", value)
        return kind(member(each, _inside(json_path, str(index))) for index, each in enumerate(value))

    return decode_list


def _tuple(members: tuple[_Decoder, ...]) -> _Decoder:
    def decode_tuple(value: Any, json_path: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(members):
            raise _mismatch(json_path, f"a list of {len(members)}", value)
        pairs = zip(members, value, strict=True)
        return tuple(member(each, _inside(json_path, str(index))) for index, (member, each) in enumerate(pairs))

    return decode_tuple


def _dict(member: _Decoder) -> _Decoder:
    def decode_dict(value: Any, json_path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _mismatch(json_path, "an object", value)
        return {name: member(each, _inside(json_path, name)) for name, each in value.items()}

    return decode_dict


def _enum(kind: type[Enum]) -> _Decoder:
    def decode_enum(value: Any, json_path: str) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise _mismatch(json_path, "one of " + ", ".join(repr(each.value) for each in kind), value) from None

    return decode_enum


def _path(value: Any, json_path: str) -> Path:
    if not isinstance(value, str) or "\0" in value or not _is_text(value):
        raise _mismatch(json_path, "a path", value)
    return Path(value)


@record_class(frozen=True)
class _ErrorFields:
    message: str
    hint: str
    exit_code: ExitCode


def _error(value: Any, json_path: str) -> ClusterError:
    error = decode(_ErrorFields, value, json_path)
    return ClusterError(error.message, hint=error.hint, exit_code=error.exit_code)


def _dataclass(kind: Any, lenient: bool) -> _Decoder:
    hints = get_type_hints(kind)
    members = {each.name: _decoder(hints[each.name], lenient) for each in fields(kind) if each.init}
    optional = {each.name for each in fields(kind) if not (each.default is each.default_factory is MISSING)}
    required = members.keys() - optional if lenient else members.keys()

    def decode_dataclass(value: Any, json_path: str) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(json_path, "an object", value)
        for name in required - value.keys():
            raise DecodeError(_inside(json_path, name), "missing")
        for name in value.keys() - members.keys() if not lenient else ():
            raise DecodeError(_inside(json_path, name), f"unknown; expected {', '.join(members)}")
        present = {name: member for name, member in members.items() if name in value}
        return kind(**{name: member(value[name], _inside(json_path, name)) for name, member in present.items()})

    return decode_dataclass


def _is_text(value: str) -> bool:
    """Return whether a string can be encoded as UTF-8: JSON allows a lone surrogate (half of a surrogate pair)."""
    if value.isascii():
        return True
    try:
        value.encode(errors="surrogateescape")  # Python represents paths that are not UTF-8 with this error handler
    except UnicodeEncodeError:
        return False
    return True


def _inside(json_path: str, name: str) -> str:
    return f"{json_path}.{name}" if json_path else name


def _mismatch(json_path: str, expected: str, value: Any) -> DecodeError:
    shown = repr(value) if isinstance(value, (str, int, float, bool, NoneType)) else f"a {type(value).__name__}"
    return DecodeError(json_path, f"expected {expected}", shown[: settings.ERROR_VALUE_MAX_CHARS])


#: The format of all documents on disk.
FORMAT = 3
#: What to do about a document that a newer version has written.
NEWER_HINT = "Nothing was changed. Install that version, or a newer one, and repeat the command."


@record_class(frozen=True)
class _Header:
    """What each document has besides its own fields."""

    format: int
    tfcluster: Any = "?"  # the version that has written it


class NewerFormatError(ValueError):
    """A document has a format that only newer versions know. Nothing here may change or remove it."""


def to_stored(value: object) -> dict[str, Any]:
    """Return the JSON value of a document: a dataclass or a mapping, with its format and who has written it."""
    return {"format": FORMAT, "tfcluster": __version__, **to_json(value)}


def from_stored(kind: type[T], document: Any) -> T:
    """Decode a document; one of a newer format raises a NewerFormatError, and one of an older format a ValueError."""
    found = decode(_Header, document, lenient=True).format
    if found > FORMAT:
        raise _newer(document, f"its format is {found}, and this version ({__version__}) reads format {FORMAT}")
    if found < FORMAT:
        raise ValueError(f"its format is {found}, of an earlier version, and this one reads format {FORMAT}")
    return decode(kind, document, lenient=True)


def check_protocol(document: Any, protocol: int) -> None:
    """Raise a NewerFormatError if an agent of a newer version of the protocol has written a document.

    An agent that continued from there would lock out the commands that have started the newer one.
    """
    if protocol > PROTOCOL:
        raise _newer(document, f"its protocol is {protocol}, and that of this version ({__version__}) is {PROTOCOL}")


def _newer(document: Any, reason: str) -> NewerFormatError:
    release = decode(_Header, document, lenient=True).tfcluster
    return NewerFormatError(f"written by tfcluster {release}, which is newer: {reason}")
