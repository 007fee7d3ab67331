"""Find the cluster that the user means: the choice without a name, the hosts of a named one, the spec of a new one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.client.cluster import Cluster, cluster_of, read_registry, recorded_spec
from tfcluster.client.rpc.parallel import warn
from tfcluster.errors import ClusterError, ExitCode, usage_error
from tfcluster.input_file import is_descriptor
from tfcluster.paths import (
    CLUSTER_NAME,
    DEFAULT_SPEC,
    LOCAL_HOST,
    journal_path,
    running_clusters,
    state_folder,
    validate_name,
)
from tfcluster.process_mark import mark_of, processes_with_marks
from tfcluster.providers import load_provider

if TYPE_CHECKING:
    from tfcluster.core.topology import ClusterTopology
    from tfcluster.providers.request import HostRequest
    from tfcluster.spec.variables import SpecEnvironment

#: The option for the one-line notation, which takes the place of a spec's path.
_NOTATION = "--cluster-spec"


def resolve_cluster(named: str | None) -> Cluster:
    """Resolve the cluster that the user means.

    Args:
        named: The value of -c or TFCLUSTER_CLUSTER. Without it, the cluster is the one of ./cluster.yaml if there is
            such a file, even if it is not running; otherwise it is the only one that is running.
    """
    if named:
        return find_cluster(validate_name(named))
    if DEFAULT_SPEC.exists():
        return _cluster_of_this_folder()
    running = names_of_clusters()
    if len(running) == 1:
        return find_cluster(running[0])
    if running:
        raise usage_error(
            "several clusters are running: " + ", ".join(running), "Choose one with -c NAME; `tfcluster ls` shows them."
        )
    raise ClusterError(
        "no cluster is running, and there is no cluster.yaml here",
        hint="Start one with `tfcluster up SPEC`; `tfcluster init` writes a commented cluster.yaml.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def names_of_clusters() -> list[str]:
    """Return the sorted names of the clusters among which a command without a name chooses."""
    return running_clusters() or sorted({*clusters_of_processes()})  # their journals may be lost


def is_ambiguous(named: str | None) -> bool:
    """Return whether several clusters are up and nothing says which one is meant; see `resolve_cluster`."""
    return not named and not DEFAULT_SPEC.exists() and len(names_of_clusters()) > 1


def clusters_of_processes() -> Iterator[str]:
    """Yield the cluster of each process that the kernel shows, with or without a journal; its mark proves the name."""
    for process, mark in processes_with_marks():
        prefix, _, title = process.title().partition(": ")
        cluster = title.partition(" ")[0]
        if prefix == "tfcluster" and CLUSTER_NAME.fullmatch(cluster) and mark == mark_of(state_folder(cluster)):
            yield cluster


def _cluster_of_this_folder() -> Cluster:
    """Return the cluster of ./cluster.yaml."""
    return cluster_of_spec(DEFAULT_SPEC)


def cluster_of_spec(spec: Path) -> Cluster:
    """Return the cluster of a spec, even if it is not running.

    A `name:` in the file says which cluster is meant, as -c does. Without one, the cluster is the one that was started
    from this very file: a folder of the same name elsewhere may have a cluster of the same name.
    """
    from tfcluster.spec.cluster_name import read_name  # imports yaml

    name, has_name = read_name(spec)
    running = running_clusters()
    if name is None or name not in running:
        cluster = _unregistered_cluster(*_load_place(spec))
        warn_of_renamed(cluster.name, spec_source(spec, None))
        return cluster
    if not has_name and (other_spec := _foreign_spec(name, spec_source(spec, None))) is not None:
        raise ClusterError(
            f"the cluster of {spec} is not running: the cluster {name!r} that runs was started from {other_spec}",
            hint=f"Use that one with -c {name}; or give {spec} its own `name:` and start it with `tfcluster up`.",
            exit_code=ExitCode.NOT_RUNNING,
        )
    return find_cluster(name)


def find_cluster(name: str) -> Cluster:
    """Return a cluster by its name.

    Its hosts are those of the registry. Without an entry they are this machine if the cluster has a journal here, or
    else those of ./cluster.yaml if that has the same name, or else this machine.
    """
    if (registered := read_registry(name)) is not None:
        return registered
    if not journal_path(name).exists() and DEFAULT_SPEC.exists():
        own = None
        with contextlib.suppress(ClusterError):  # ignore an invalid ./cluster.yaml, as the user named the cluster
            own = _load_place(DEFAULT_SPEC)
        if own is not None and own[0].cluster == name:
            return _unregistered_cluster(*own)
    return Cluster(name)


def _load_place(spec: Path) -> tuple[ClusterTopology, HostRequest | None, bool]:
    """Read a spec for its cluster and hosts: variables that say neither need not be set, as in the shell of `up`.

    Return what `load_spec_topology` returns, and whether the cluster or its hosts depend on variables.
    """
    from tfcluster.spec.variables import SpecEnvironment, says_place

    environment = SpecEnvironment()
    try:
        loaded = load_spec_topology(spec, None, environment)
    except ClusterError:
        if not environment.unset:
            raise
        environment = SpecEnvironment(only_place=True)
        loaded = load_spec_topology(spec, None, environment)
    return *loaded, any(map(says_place, environment.replaced))


def _unregistered_cluster(
    topology: ClusterTopology, request: HostRequest | None, depends_on_variables: bool
) -> Cluster:
    """Return the cluster of a spec, of which `_load_place` says this, and which is not up as far as this machine knows.

    The file may be of a stranger, whose folder the user only looks at. So its `connect:` is not run, as that is a
    command on this machine, and no host is contacted whose name may tell what a variable holds.
    """
    if request is not None:
        provider = load_provider(request.key)(topology.cluster, None)
        if (placed := provider.locate(topology, request)) is None:
            raise provider.not_started_here(topology.cluster, request)
        return Cluster(placed.cluster, placed.hosts, placed.head().host, provider)
    for host in topology.hosts:
        if host.connect is not None:
            raise _not_contacted(topology.cluster, f"the command of `connect:` of host {host.name!r} is not run")
        if depends_on_variables and host.name != LOCAL_HOST:
            raise _not_contacted(topology.cluster, f"host {host.name!r} is not contacted, as variables say where it is")
    return cluster_of(topology)


def _not_contacted(cluster: str, consequence: str) -> ClusterError:
    return ClusterError(
        f"cluster {cluster!r} is not running, or was not started from this machine: then {consequence}",
        hint="`tfcluster up` does that, and starts the cluster or finds it.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def load_topology(spec: Path | None, notation: str | None) -> ClusterTopology:
    """Read a spec as `load_spec_topology` does; one whose hosts `up` gets has none yet, and raises an error."""
    topology, request = load_spec_topology(spec, notation)
    if request is not None:
        raise usage_error(
            f"{topology.spec}: `{request.key}:` has hosts only when `up` has requested them",
            "`tfcluster validate` checks the spec; `tfcluster up --dry-run` prints what is submitted or applied.",
        )
    return topology


def load_spec_topology(
    spec: Path | None, notation: str | None, environment: SpecEnvironment | None = None
) -> tuple[ClusterTopology, HostRequest | None]:
    """Read a spec (None: ./cluster.yaml), or a cluster in the one-line notation, and resolve it into a topology.

    With a request for hosts, they have their names, and no addresses. Without `environment`, a spec depends on the
    variables of this process.
    """
    if notation is not None and spec is not None:
        raise usage_error("give a spec or --cluster-spec, not both")
    if notation is None and spec is None and not DEFAULT_SPEC.exists():
        raise usage_error(
            "there is no cluster.yaml here, and no spec was given",
            "`tfcluster init` writes a commented cluster.yaml; or give one: `tfcluster up SPEC`.",
        )
    from tfcluster.core.resolve import resolve_spec
    from tfcluster.spec.load import load_spec, parse_cluster_notation  # imports pydantic, which few commands need

    if notation is not None:
        return _in_folder(resolve_spec(parse_cluster_notation(notation), _NOTATION), None), None
    path = spec or DEFAULT_SPEC
    loaded = load_spec(path, environment)
    has_folder = path.is_file() and not is_descriptor(str(path))
    topology = _in_folder(resolve_spec(loaded, str(path)), path if has_folder else None)
    return topology, loaded.request


def _in_folder(topology: ClusterTopology, path: Path | None) -> ClusterTopology:
    """Return a topology with the folder of its servers on this machine: that of the spec, or else the current one."""
    if not topology.on(LOCAL_HOST):
        return topology
    try:
        return replace(topology, folder=os.path.dirname(os.path.abspath(path)) if path else os.getcwd())
    except FileNotFoundError:  # the current folder was deleted
        return topology


def spec_source(spec: Path | None, notation: str | None) -> str:
    """Return what identifies the spec that a cluster is started from, whichever folder it is named from.

    This is the absolute path of a file (None: ./cluster.yaml) without symbolic links; a pipe as it was named; or
    `--cluster-spec` for the one-line notation.
    """
    if notation is not None:
        return _NOTATION
    path = spec or DEFAULT_SPEC
    return os.path.realpath(path) if path.is_file() else str(path)


def warn_of_renamed(cluster: str, source: str) -> None:
    """Print which running clusters were started from a spec (`spec_source`) while it had another `name:`."""
    for name in running_clusters() if os.path.isfile(source) else ():  # a pipe may bring any number of specs
        if name != cluster and recorded_spec(name) == source:
            warn(
                f"warning: cluster {name!r}, which was started from {source} before its name changed, is still "
                f"running; `tfcluster down -c {name}` stops it"
            )


def check_source(cluster: str, source: str) -> None:
    """Raise an error if a running cluster was started from another spec than `source`, which `spec_source` returned."""
    if cluster in running_clusters() and (other_spec := _foreign_spec(cluster, source)) is not None:
        raise usage_error(
            f"cluster {cluster!r} is running and was started from {other_spec}, not from {source}: nothing was changed",
            "Give this one another `name:` to start a separate cluster, or add --replace-spec to change the "
            "running cluster to this spec.",
        )


def _foreign_spec(cluster: str, source: str) -> str | None:
    """Return the spec that a cluster was started from if that is known and is not `source`, else None."""
    recorded = recorded_spec(cluster)
    return None if recorded in (None, source) else recorded
