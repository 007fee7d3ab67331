"""Validate a spec as the user wrote it; one error lists every problem."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import TypeAdapter, ValidationError

from tfcluster.spec.cross_checks import check_host_references, normalize_hosts
from tfcluster.spec.diagnostics import Diagnostic, KeyPath, to_error
from tfcluster.spec.error_messages import explain
from tfcluster.spec.schema import ClusterName, Spec
from tfcluster.spec.yaml_source import YamlDocument


def build_spec(source: YamlDocument, default_name: str) -> Spec:
    """Validate a spec.

    Args:
        source: The spec as the user wrote it.
        default_name: The cluster's name if the source does not set one.

    Returns:
        The validated spec.

    Raises:
        ClusterError: The spec is invalid; the message has one line for each problem.
    """
    normalize_hosts(source)
    problems = [*source.problems, *check_host_references(source)]
    value = source.value
    if "name" not in value:
        problems += _unusable_name(source, default_name)
        value = {"name": "unnamed" if problems else default_name, **value}
    try:
        spec = Spec.model_validate(value)
    except ValidationError as error:
        raise to_error([*problems, *explain(error, source)]) from None
    problems += _waits_out_of_order(spec, source)
    if problems:
        raise to_error(problems)
    return spec


def _unusable_name(source: YamlDocument, name: str) -> list[Diagnostic]:
    try:
        TypeAdapter(ClusterName).validate_python(name)
    except ValidationError:
        message = f"the file's name {name!r} cannot be the name of a cluster"
        return [source.problem(("name",), message, "add name: and a name to the file", source.values[()])]
    return []


def _waits_out_of_order(spec: Spec, source: YamlDocument) -> Iterator[Diagnostic]:
    """Yield a problem for each job whose `initial` back-off exceeds `max` after merging with the cluster's values.

    The schema reports the case in which the job sets both values.
    """
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
