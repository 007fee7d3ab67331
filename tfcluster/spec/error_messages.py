"""Translate pydantic's validation errors into diagnostics for the user, each with its position in the file."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tfcluster.spec.diagnostics import Diagnostic, KeyPath, Position, describe, shorten
from tfcluster.spec.hosts import Host
from tfcluster.spec.policies import Backoff, JobBackoff, JobRestart, Logs, Restart
from tfcluster.spec.schema import Job, Spec
from tfcluster.spec.yaml_source import YamlDocument


def explain(error: ValidationError, source: YamlDocument) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each validation error, except for values that already have a problem."""
    errors = [(_source_path(details, source), details) for details in error.errors(include_url=False)]
    misspelled = {
        (*path[:-1], key)
        for path, details in errors
        if details["type"] == "extra_forbidden"
        for key in _similar_keys(path)
    }
    for path, details in errors:
        if not source.has_error(path) and not (details["type"] == "missing" and path in misspelled):
            yield _problem(details, path, source)


def _problem(details: ErrorDetails, path: KeyPath, source: YamlDocument) -> Diagnostic:
    kind, context = details["type"], details.get("ctx", {})
    position = source.values.get(path) or source.values[()]
    if kind == "extra_forbidden":
        return source.problem(path, "unknown key", _known_keys(path), source.keys[path])
    if kind == "missing":
        return source.problem(path, "this key is missing", at=_key_position(path[:-1], source))
    if kind == "key":
        return source.problem(path, context["message"], at=source.keys[path])
    if kind == "complete":
        return source.problem(path, context["message"], context["hint"], position)
    value = _value_at(path, source)
    actual = describe(value, source.texts.get(path))
    expected = _EXPECTED.get(kind, _EXPECTED["other"])(context, path)
    hint = context.get("hint", "")
    if kind == "string_type" and path in source.texts and value is not None:
        hint = f"write it in quotes: {json.dumps(shorten(source.texts[path]), ensure_ascii=False)}"
    return source.problem(path, f"{expected}, found {actual}", hint, position)


_EXPECTED: dict[str, Callable[[dict[str, Any], KeyPath], str]] = {
    "expected": lambda context, path: str(context["message"]),
    "greater_than_equal": lambda context, path: f"must be {context['ge']} or more",
    "less_than_equal": lambda context, path: f"must be {context['le']} or less",
    "greater_than": lambda context, path: f"must be more than {context['gt']:g}",
    "too_short": lambda context, path: "must have at least one entry",
    "too_long": lambda context, path: f"must have at most {context['max_length']} entries",
    "literal_error": lambda context, path: "expected " + context["expected"].replace("'", ""),
    "int_type": lambda context, path: "expected a whole number",
    "float_type": lambda context, path: "expected a number",
    "finite_number": lambda context, path: "expected a finite number",
    "string_type": lambda context, path: "expected text",
    "tuple_type": lambda context, path: "expected a list",
    "dict_type": lambda context, path: "expected names and values",
    "model_type": lambda context, path: f"expected the keys {', '.join(_model_at(path).model_fields)}",
    "other": lambda context, path: "expected something else",
}


def _source_path(details: ErrorDetails, source: YamlDocument) -> KeyPath:
    """Return the path of an error in the file, which differs from pydantic's for a job written as a list of addresses.

    The file has no key `tasks` for such a job.
    """
    loc = details["loc"]
    if details["type"] == "key":
        return loc[:-1]  # pydantic appends "[key]" to the path
    if len(loc) > 2 and loc[0] == "jobs" and isinstance(_value_at(loc[:2], source), list):
        return (*loc[:2], *loc[3:])
    return loc


def _value_at(path: KeyPath, source: YamlDocument) -> Any:
    value: Any = source.value
    for part in path:
        value = value[part]
    return value


def _key_position(path: KeyPath, source: YamlDocument) -> Position:
    return source.keys.get(path) or source.values[()]


def _model_at(path: KeyPath) -> type[BaseModel]:
    if not path:
        return Spec
    if path[0] == "jobs":
        path = path[2:]  # without `jobs` and the job's name
        return Job if not path else JobRestart if len(path) == 1 else JobBackoff
    if path[0] == "hosts":
        return Host
    if path[0] == "logs":
        return Logs
    return Restart if len(path) == 1 else Backoff


def _known_keys(path: KeyPath) -> str:
    if similar := _similar_keys(path):
        return f"did you mean {similar[0]!r}?"
    return f"known keys: {', '.join(_model_at(path[:-1]).model_fields)}"


def _similar_keys(path: KeyPath) -> list[str]:
    return difflib.get_close_matches(str(path[-1]), _model_at(path[:-1]).model_fields, n=1)
