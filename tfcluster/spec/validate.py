"""A spec as it was written -> the validated spec, or one error that lists every problem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from tfcluster.spec.messages import explain
from tfcluster.spec.problems import KeyPath, Problem, as_error
from tfcluster.spec.schema import Address, ClusterName, Spec
from tfcluster.spec.source import Source


def build_spec(source: Source, default_name: str) -> Spec:
    """The spec of a source.

    Args:
        source: The spec as it was written.
        default_name: The cluster's name when the source has none.

    Raises:
        ClusterError: Something is wrong in it; the message has a line for each problem.
    """
    problems = [*source.problems, *_repeated_addresses(source)]
    value = source.value
    if "name" not in value:
        problems += _unusable_name(source, default_name)
        value = {"name": "unnamed" if problems else default_name, **value}
    try:
        spec = Spec.model_validate(value)
    except ValidationError as error:
        raise as_error([*problems, *explain(error, source)]) from None
    problems += _waits_out_of_order(spec, source)
    if problems:
        raise as_error(problems)
    return spec


def _unusable_name(source: Source, name: str) -> list[Problem]:
    try:
        TypeAdapter(ClusterName).validate_python(name)
    except ValidationError:
        message = f"the file's name {name!r} cannot be the name of a cluster"
        return [source.problem(("name",), message, "add name: and a name to the file", source.values[()])]
    return []


def _waits_out_of_order(spec: Spec, source: Source) -> Iterator[Problem]:
    """The jobs whose first wait is longer than the longest, of which one is theirs and the other the cluster's."""
    for name, job in spec.jobs.items():
        try:
            spec.restart_of(job)
        except ValidationError:
            own, cluster = job.restart.backoff, spec.restart.backoff
            if own.initial is None:
                message = f"max ({own.max:g}) must be the cluster's initial ({cluster.initial:g}) or more"
            else:
                message = f"initial ({own.initial:g}) must be the cluster's max ({cluster.max:g}) or less"
            path: KeyPath = ("jobs", name, "restart", "backoff")
            yield source.problem(path, message, at=source.values.get(path) or source.values[()])


def _repeated_addresses(source: Source) -> Iterator[Problem]:
    """The tasks whose port another one has: a TensorFlow server listens on every interface."""
    taken: dict[int, tuple[str, Address]] = {}
    for task, path, text in _written_addresses(source.value):
        try:
            address = Address.parse(text)
        except PydanticCustomError:
            continue  # the schema says what is wrong with it
        if address.port is None:
            continue
        first, other = taken.setdefault(address.port, (task, address))
        if first == task:
            continue
        message, hint = f"{task} has the address {address} of {first}", ""
        if other != address:
            message = f"{task} has the port of {first}, which is {other}"
            hint = "a TensorFlow server listens on every interface"
        yield source.problem(path, message, hint, source.values[path])


def _written_addresses(value: dict[str, Any]) -> Iterator[tuple[str, KeyPath, str]]:
    jobs = value.get("jobs")
    for name, job in jobs.items() if isinstance(jobs, dict) else ():
        tasks = job.get("tasks") if isinstance(job, dict) else job
        path: KeyPath = ("jobs", name, "tasks") if isinstance(job, dict) else ("jobs", name)
        for index, text in enumerate(tasks) if isinstance(tasks, list) else ():
            if isinstance(text, str):
                yield f"{name}:{index}", (*path, index), text
