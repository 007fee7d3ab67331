"""Parse the cluster notation of the old grpc_tensorflow_server, `master|localhost:2222,worker|…`, into a spec."""

from __future__ import annotations

from collections.abc import Iterator

from tfcluster.spec.diagnostics import KeyPath, Position, to_error
from tfcluster.spec.load import build_spec
from tfcluster.spec.schema import Spec
from tfcluster.spec.yaml_source import YamlDocument

OPTION = "--cluster-spec"
_EXAMPLE = "write it as worker|localhost:2223;localhost:2224"


def parse_cluster_notation(text: str) -> Spec:
    """Parse a cluster in the notation `JOB|ADDRESS;ADDRESS,JOB|ADDRESS`.

    Args:
        text: The cluster in this notation.

    Returns:
        The validated spec; the name of its cluster is `cluster`.

    Raises:
        ClusterError: The notation or the spec is invalid; the message has one line for each problem.
    """
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
            for index, (place, address) in enumerate(_split(addresses, ";", column + len(name) + 1)):
                jobs[name].append(address)
                inner: KeyPath = (*path, index)
                source.values[inner] = Position(1, place)
    if not jobs:
        raise to_error(source.problems)
    source.value = {"jobs": jobs}
    return build_spec(source, "cluster")


def _split(text: str, separator: str, column: int) -> Iterator[tuple[int, str]]:
    """Split a text and yield the column and the stripped text of each part.

    Args:
        text: The text.
        separator: The character between the parts.
        column: The column at which the text starts, from 1.
    """
    for part in text.split(separator):
        yield column + len(part) - len(part.lstrip()), part.strip()
        column += len(part) + 1
