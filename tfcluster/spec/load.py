"""Load a spec from a YAML file or its text, and validate it; one error lists every problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.cross_checks import check_host_references, normalize_hosts
from tfcluster.spec.diagnostics import Diagnostic, KeyPath, to_error
from tfcluster.spec.error_messages import explain
from tfcluster.spec.schema import ClusterName, Spec
from tfcluster.spec.yaml_source import INIT_HINT, YamlDocument, read_source


def load_spec(path: Path) -> Spec:
    """Load and validate the spec in a YAML file; the default name of its cluster is the file's name without extension.

    Args:
        path: The path of the file.

    Returns:
        The validated spec.

    Raises:
        ClusterError: The file cannot be read, or the spec is invalid.
    """
    try:
        with path.open("rb") as file:
            text = file.read(settings.SPEC_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ClusterError(f"{path}: {reason}", hint=INIT_HINT, exit_code=ExitCode.USAGE) from None
    return parse_spec(text, str(path), path.stem)


def parse_spec(text: str | bytes, file: str, default_name: str) -> Spec:
    """Parse and validate the spec in a YAML text.

    Args:
        text: The text; bytes are decoded as UTF-8.
        file: The file name for error messages.
        default_name: The cluster's name if the text does not set one.

    Returns:
        The validated spec.

    Raises:
        ClusterError: The spec is invalid; the message has one line for each problem.
    """
    return build_spec(read_source(text, file), default_name)


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
    problems += _backoffs_out_of_order(spec, source)
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
