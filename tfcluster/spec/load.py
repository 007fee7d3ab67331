"""Load a spec from a YAML file, its text or the one-line notation, and validate it; one error lists every problem."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tfcluster.providers.request import HostRequest
from tfcluster.providers.requests import REQUESTS
from tfcluster.spec.cluster_name import default_name, read_spec
from tfcluster.spec.cross_checks import (
    check_host_references,
    check_task_count,
    normalize_hosts,
)
from tfcluster.spec.diagnostics import Diagnostic, KeyPath, Position, shorten, to_error
from tfcluster.spec.hosts import HostSpec
from tfcluster.spec.policies import Backoff, JobBackoff, JobRestart, Logs, NotifySpec, RestartSpec
from tfcluster.spec.schema import Job, Spec
from tfcluster.spec.variables import TYPED_KEYS, SpecEnvironment
from tfcluster.spec.yaml_source import YamlDocument, read_source

OPTION = "--cluster-spec"
_TYPED_KEYS = TYPED_KEYS.union(*(request.numbers for request in REQUESTS.values()))
_EXAMPLE = "write it as worker|localhost:2223;localhost:2224"


def load_spec(path: Path, environment: SpecEnvironment | None = None) -> Spec:
    """Load and validate the spec in a YAML file, which can depend on variables: by default those of this process."""
    return parse_spec(read_spec(path), str(path), default_name(path), environment)


def parse_spec(text: str | bytes, file: str, default_name: str, environment: SpecEnvironment | None = None) -> Spec:
    """Parse and validate the spec in a YAML text, in UTF-8; the error has one line for each problem.

    `file` is the name for error messages. `default_name` is the cluster's name if the text does not set one; it is
    empty if the file's path gives none.
    """
    return build_spec(read_source(text, file, environment, _TYPED_KEYS), default_name)


def parse_cluster_notation(text: str) -> Spec:
    """Parse a cluster, named `cluster`, in the notation `JOB|ADDRESS;ADDRESS,JOB|ADDRESS`."""
    source = YamlDocument(OPTION, values={(): Position(1, 1), ("jobs",): Position(1, 1)})
    if not text.strip():
        raise to_error([source.problem((), "no job is named", _EXAMPLE)])
    jobs: dict[str, list[str]] = {}
    for column, part in _split(text, ",", 1):
        at = Position(1, column)
        name, bar, addresses = part.partition("|")
        path: KeyPath = ("jobs", name)
        if not bar:
            source.problems.append(source.problem((), f"expected JOB|ADDRESS, found {part!r}", _EXAMPLE, at))
        elif name in jobs:
            first = source.keys[path].column
            source.problems.append(source.problem(path, f"this job is already at column {first}", at=at))
        else:
            jobs[name] = []
            source.keys[path] = source.values[path] = at
            for index, (start, address) in enumerate(_split(addresses, ";", column + len(name) + 1)):
                jobs[name].append(address)
                inner: KeyPath = (*path, index)
                source.values[inner] = Position(1, start)
    if not jobs:
        raise to_error(source.problems)
    source.value = {"jobs": jobs}
    return build_spec(source, "cluster")


def _split(text: str, separator: str, column: int) -> Iterator[tuple[int, str]]:
    """Split a text that starts at a column, from 1, and yield the column and the stripped text of each part."""
    for part in text.split(separator):
        yield column + len(part) - len(part.lstrip()), part.strip()
        column += len(part) + 1


def build_spec(source: YamlDocument, default_name: str) -> Spec:
    """Validate a spec, with a line for each problem; `default_name` is for a source that does not set one."""
    normalize_hosts(source)
    problems = [*source.problems, *check_task_count(source), *check_host_references(source)]
    value = source.value
    if "name" not in value:
        if not default_name:
            message = "the file's path gives no name for the cluster"
            problems.append(source.problem(("name",), message, "add name: and a name to the file", source.values[()]))
        value = {"name": "unnamed" if problems else default_name, **value}
    try:
        spec = Spec.model_validate(value)
    except ValidationError as error:
        raise to_error([*problems, *explain(error, source)]) from None
    problems += _backoffs_out_of_order(spec, source)
    if problems:
        raise to_error(problems)
    if spec.host is not None and spec.hosts is not None:
        spec = spec.model_copy(update={"hosts": dict.fromkeys(spec.hosts, spec.host), "host": None})
    return spec if spec.request is None else _placed_by(spec.request, spec, source)


def _placed_by(request: HostRequest, spec: Spec, source: YamlDocument) -> Spec:
    """Return a spec with jobs on the hosts where the provider wants them, unless the spec says where they are."""
    request.check_name(spec.name, source)
    tasks = {name: None if job.hosts or any(job.tasks) else len(job.tasks) for name, job in spec.jobs.items()}
    placed = request.place_jobs([*(spec.hosts or ())], tasks)
    moved = {name: spec.jobs[name].model_copy(update={"hosts": tuple(hosts)}) for name, hosts in placed.items()}
    return spec.model_copy(update={"jobs": {**spec.jobs, **moved}})


def _backoffs_out_of_order(spec: Spec, source: YamlDocument) -> Iterator[Diagnostic]:
    """Yield a problem for each job whose `initial` back-off exceeds `max` after merging with the cluster's values.

    The schema reports the case in which the job sets both values.
    """
    for name, job in spec.jobs.items():
        try:
            spec.effective_restart(job)
        except ValidationError:
            own, cluster = job.restart.backoff, spec.restart.backoff
            if own.initial is None:
                message = f"max ({own.max:g}) must be the cluster's initial ({cluster.initial:g}) or more"
            else:
                message = f"initial ({own.initial:g}) must be the cluster's max ({cluster.max:g}) or less"
            path: KeyPath = ("jobs", name, "restart", "backoff")
            yield source.problem(path, message, at=source.values.get(path) or source.values[()])


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
        is_said = source.has_error(path) or source.has_broken_secret(path)
        is_said = is_said and details["type"] != "extra_forbidden"
        if not is_said and not (details["type"] == "missing" and path in misspelled):
            yield _problem(details, path, source)


def _problem(details: ErrorDetails, path: KeyPath, source: YamlDocument) -> Diagnostic:
    kind, context = details["type"], details.get("ctx", {})
    position = source.values.get(path) or source.values[()]
    if kind == "extra_forbidden":
        return source.problem(path, "unknown key", _known_keys(path), source.keys[path])
    if kind == "missing":
        return source.problem(path, "this key is missing", at=source.keys.get(path[:-1]) or source.values[()])
    if kind == "key":
        return source.problem(path, context["message"], at=source.keys[path])
    if kind == "complete":
        return source.problem(path, context["message"], context["hint"], position)
    value = _value_at(path, source)
    actual = source.describe(path, value)
    expected = _EXPECTED.get(kind, _EXPECTED["other"])(context, path)
    hint = context.get("hint", "")
    if kind == "string_type" and path in source.texts and value is not None:
        hint = f"write it in quotes: {json.dumps(shorten(source.texts[path]), ensure_ascii=False)}"
    if kind == "bool_type" and value in ("true", "false"):
        hint = "write it without quotes"
    return source.problem(path, f"{expected}, found {actual}", hint, position)


_EXPECTED: dict[str, Callable[[dict[str, Any], KeyPath], str]] = {
    "expected": lambda context, path: str(context["message"]),
    "greater_than_equal": lambda context, path: f"must be {context['ge']} or more",
    "less_than_equal": lambda context, path: f"must be {context['le']} or less",
    "greater_than": lambda context, path: f"must be more than {context['gt']:g}",
    "too_short": lambda context, path: "must have at least one entry",
    "too_long": lambda context, path: f"must have at most {context['max_length']} entries",
    "literal_error": lambda context, path: "expected " + context["expected"].replace("'", ""),
    "bool_type": lambda context, path: "expected true or false",
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
    """Return the path of an error in the file, which has no key `tasks` for a job that is a list of addresses."""
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


_MODELS: dict[str, type[BaseModel]] = {
    "hosts": HostSpec,
    "host": HostSpec,
    **REQUESTS,
    "logs": Logs,
    "notify": NotifySpec,
}


def _model_at(path: KeyPath) -> type[BaseModel]:
    if not path:
        return Spec
    if path[0] == "jobs":
        path = path[2:]  # without `jobs` and the job's name
        return Job if not path else JobRestart if len(path) == 1 else JobBackoff
    if path[0] == "restart":
        return RestartSpec if len(path) == 1 else Backoff
    return _MODELS[str(path[0])]


def _known_keys(path: KeyPath) -> str:
    if similar := _similar_keys(path):
        return f"did you mean {similar[0]!r}?"
    known = f"known keys: {', '.join(_model_at(path[:-1]).model_fields)}"
    return known if len(path) > 1 else f"{known}; one that begins with x- is ignored"


def _similar_keys(path: KeyPath) -> list[str]:
    return difflib.get_close_matches(str(path[-1]), _model_at(path[:-1]).model_fields, n=1)
