"""Hypothesis strategies for the values of the types that are sent between commands and agents."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from tfcluster.errors import ClusterError, ExitCode

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
#: Any JSON value.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _NUMBERS | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=4,
)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: _TEXT,
    bool: st.booleans(),
    int: st.integers(),
    float: _NUMBERS,
    NoneType: st.none(),
    Any: JSON,
    ClusterError: st.builds(ClusterError, _TEXT, hint=_TEXT, exit_code=st.sampled_from(ExitCode)),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin in (tuple, Collection):
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin in (dict, Mapping):
        return st.dictionaries(st.text(string.ascii_letters, max_size=4), values_of(arguments[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    assert is_dataclass(kind), kind
    hints = get_type_hints(kind)
    return st.builds(cast(Any, kind), **{each.name: values_of(hints[each.name]) for each in fields(kind)})
