"""The clusters that commands operate on: the handle of a cluster, the registry of clusters, and the choice of one.

The registry is comparable to a kubeconfig: it has the hosts of each cluster that is not on this machine only. `up`
writes an entry before anything starts; `down` removes it once every host has confirmed that nothing is running.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster.client.rpc import AgentClient
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import (
    DEFAULT_SPEC,
    LOCAL_HOST,
    cluster_registry_path,
    journal_path,
    running_clusters,
    validate_name,
)
from tfcluster.transport.base import HostTransport
from tfcluster.transport.local import LocalTransport

if TYPE_CHECKING:
    from tfcluster.core.hosts import Host
    from tfcluster.core.topology import ClusterTopology


class Cluster:
    """A handle on a cluster: its name, its hosts, and the connections to its agents.

    Args:
        name: The cluster's name.
        hosts: The cluster's hosts, in the order of the spec; None if it is on this machine only.
        head: The host of the head task; the agent there manages the runs.
    """

    def __init__(self, name: str, hosts: tuple[Host, ...] | None = None, head: str = LOCAL_HOST) -> None:
        self.name = name
        self.head = head
        self._hosts = hosts
        self._clients: dict[str, AgentClient] = {}

    @property
    def hosts(self) -> Mapping[str, Host]:
        """Return the cluster's hosts by name."""
        if self._hosts is None:
            from tfcluster.core.hosts import THIS_MACHINE  # most commands on a single machine do not need this module

            self._hosts = (THIS_MACHINE,)
        return {host.name: host for host in self._hosts}

    @property
    def is_local(self) -> bool:
        """Return whether the cluster is on this machine only, so that no output has to name its host."""
        return self._hosts is None or self.hosts.keys() <= {LOCAL_HOST}

    def connect(self, host: str) -> AgentClient:
        """Return the RPC client for the agent on a host, whose connection all requests of a command share."""
        if host not in self._clients:
            is_remote = host != LOCAL_HOST
            transport = make_transport(self.name, self.hosts[host]) if is_remote else LocalTransport(self.name)
            self._clients[host] = AgentClient(transport)
        return self._clients[host]

    def connect_head(self) -> AgentClient:
        """Return the RPC client for the agent on the host of the head task."""
        return self.connect(self.head)

    def add_host(self, record: dict[str, Any], host: str) -> dict[str, Any]:
        """Return a record of a command's JSON output with the host that it is from."""
        return record if self.is_local else {**record, "host": host}


def make_transport(cluster: str, host: Host) -> HostTransport:
    """Return a transport over SSH to a cluster's agent on a remote host."""
    from tfcluster.transport.ssh import SshTransport

    return SshTransport(cluster, host)


def resolve_cluster(named: str | None) -> Cluster:
    """Resolve the cluster that the user means.

    Args:
        named: The value of -c or TFCLUSTER_CLUSTER. Without it, the cluster is the only one that is up, or else the
            one of ./cluster.yaml.

    Returns:
        The cluster.

    Raises:
        ClusterError: No cluster is up and there is no ./cluster.yaml, or several are up.
    """
    if named:
        return find_cluster(validate_name(named))
    running = running_clusters()
    if len(running) == 1:
        return find_cluster(running[0])
    own = _own_cluster()
    if own is not None and (not running or own.name in running):
        return read_registry(own.name) or own
    if running:
        raise ClusterError(
            "several clusters are running: " + ", ".join(running),
            hint="Choose one with -c NAME.",
            exit_code=ExitCode.USAGE,
        )
    raise ClusterError(
        "no cluster is running, and there is no cluster.yaml here",
        hint="Start one with `tfcluster up SPEC`; `tfcluster init` writes a commented cluster.yaml.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def find_cluster(name: str) -> Cluster:
    """Return a cluster by its name.

    Its hosts are those of the registry. Without an entry they are this machine if the cluster has a journal here, or
    else those of ./cluster.yaml if that has the same name, or else this machine.

    Raises:
        ClusterError: The registry entry cannot be read.
    """
    if (registered := read_registry(name)) is not None:
        return registered
    if not journal_path(name).exists():
        # Ignore an invalid ./cluster.yaml, as the user named the cluster.
        with contextlib.suppress(ClusterError):
            own = _own_cluster()
            if own is not None and own.name == name:
                return own
    return Cluster(name)


def _own_cluster() -> Cluster | None:
    """Return the cluster of ./cluster.yaml, if there is one."""
    return cluster_of(load_topology(None, None)) if DEFAULT_SPEC.exists() else None


def cluster_of(topology: ClusterTopology) -> Cluster:
    """Return the handle on the cluster of a topology."""
    return Cluster(topology.cluster, topology.hosts, topology.head().host)


def load_topology(spec: Path | None, notation: str | None) -> ClusterTopology:
    """Read a spec and resolve it into a topology.

    Args:
        spec: The file; None for ./cluster.yaml.
        notation: The cluster in the one-line notation, instead of a file.

    Raises:
        ClusterError: Both are given, there is no file, or the spec is invalid.
    """
    if notation is not None and spec is not None:
        raise ClusterError("give a spec or --cluster-spec, not both", exit_code=ExitCode.USAGE)
    if notation is None and spec is None and not DEFAULT_SPEC.exists():
        raise ClusterError(
            "there is no cluster.yaml here, and no spec was given",
            hint="`tfcluster init` writes a commented cluster.yaml; or give one: `tfcluster up SPEC`.",
            exit_code=ExitCode.USAGE,
        )
    from tfcluster.core.resolve import resolve_spec
    from tfcluster.spec.load import load_spec, parse_cluster_notation  # imports pydantic, which few commands need

    if notation is not None:
        return resolve_spec(parse_cluster_notation(notation), "--cluster-spec")
    path = spec or DEFAULT_SPEC
    return resolve_spec(load_spec(path), str(path))


def read_registry(name: str) -> Cluster | None:
    """Read a cluster from the registry.

    Returns:
        The cluster; None if it has no entry.

    Raises:
        ClusterError: The entry cannot be read.
    """
    path = cluster_registry_path(name)
    if not path.exists():
        return None
    from tfcluster.core.hosts import Host
    from tfcluster.protocol.serialization import decode

    try:
        entry = json.loads(path.read_text())
        return Cluster(name, decode(tuple[Host, ...], entry["hosts"]), entry["head"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClusterError(
            f"{path}: cannot read the hosts of cluster {name!r}: {error}",
            hint="If you have its spec, remove the file: `up` and `down` in the folder of the spec write it again.",
        ) from error


def register(cluster: Cluster) -> None:
    """Write a cluster's hosts to the registry; a cluster on this machine only needs no entry, and none is left.

    The entry is written atomically and readable by this user only: it contains the environment variables of the
    agents, which may be private.

    Raises:
        ClusterError: The entry cannot be written; without it no later command would find the cluster.
    """
    if cluster.is_local:
        unregister(cluster.name)
        return
    path = cluster_registry_path(cluster.name)
    temporary = path.with_suffix(f".{os.getpid()}")
    entry = {"head": cluster.head, "hosts": [asdict(host) for host in cluster.hosts.values()]}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(entry, file)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ClusterError(
            f"{path}: cannot write the hosts of cluster {cluster.name!r}: {error.strerror}",
            hint="Set XDG_STATE_HOME to a folder that you can write to.",
        ) from error


def unregister(name: str) -> None:
    """Remove a cluster from the registry; its folder stays while it contains logs or runs of this machine."""
    path = cluster_registry_path(name)
    if path.exists():  # a read-only disk refuses to remove even what does not exist
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
