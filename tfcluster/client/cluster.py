"""The clusters that commands operate on: the handle of a cluster, and the registry of clusters.

The registry is comparable to a kubeconfig. It has the hosts of each cluster that is not on this machine only: `up`
writes them before anything starts. And it has the spec that each cluster was started from, which `up` writes once the
cluster has accepted it. `down` removes both once every host has confirmed that nothing is running.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.files import write_atomically
from tfcluster.paths import LOCAL_HOST, authority_path, cluster_registry_path, make_private_folder, spec_record_path
from tfcluster.transport.local import LocalTransport
from tfcluster.transport.local import kill_prestarted_agent as kill_prestarted_agent  # which the command line calls
from tfcluster.transport.local import prestart_agent as prestart_agent

if TYPE_CHECKING:
    from tfcluster.core.hosts import Host
    from tfcluster.core.topology import ClusterTopology
    from tfcluster.providers.provider import Provider
    from tfcluster.transport.remote_transport import RemoteTransport


class Cluster:
    """A handle on a cluster: its name, its hosts, and the connections to its agents.

    The hosts have the order of the spec; None stands for this machine only. The agent on `head`, the host of the head
    task, manages the runs.
    """

    def __init__(
        self,
        name: str,
        hosts: tuple[Host, ...] | None = None,
        head: str = LOCAL_HOST,
        provider: Provider[Any] | None = None,
    ) -> None:
        self.name = name
        self.head = head
        self.provider = provider  # where the hosts come from; None if the spec names them
        self._hosts = hosts
        self._clients: dict[str, AgentClient] = {}
        self._upgrades = False

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
        return self.provider is None and (self._hosts is None or self.hosts.keys() <= {LOCAL_HOST})

    def connect(self, host: str) -> AgentClient:
        """Return the RPC client for the agent on a host, whose connection all requests of a command share."""
        self.require_hosts()
        if host not in self._clients:
            is_remote = host != LOCAL_HOST
            transport = make_transport(self.name, self.hosts[host]) if is_remote else LocalTransport(self.name)
            client = AgentClient(transport, upgrade=self._upgrades)
            self._clients.setdefault(host, client)  # another thread may have been first
        return self._clients[host]

    def require_hosts(self) -> None:
        """Raise an error if a provider has no hosts for the cluster yet, or is known to have none any more."""
        if self.provider is not None:
            self.provider.require_hosts()

    def connect_head(self) -> AgentClient:
        """Return the RPC client for the agent on the host of the head task."""
        return self.connect(self.head)

    def upgrading(self) -> Cluster:
        """Return this cluster for a command that changes it: even requests that only read replace older agents."""
        other = self._replace(self._hosts, self.head)
        other._upgrades = True
        return other

    def led_by(self, host: str) -> Cluster:
        """Return this cluster, with its connections, as one whose runs another host leads."""
        return self._replace(self._hosts, host)

    def without(self, hosts: Collection[str]) -> Cluster:
        """Return this cluster, with its connections, as one that lacks some of its hosts."""
        remaining = tuple(host for name, host in self.hosts.items() if name not in hosts)
        return self._replace(remaining, remaining[0].name if self.head in hosts else self.head)

    def with_hosts_of(self, topology: ClusterTopology) -> Cluster:
        """Return this cluster, with its connections, as one that has the hosts of a topology."""
        return self._replace(topology.hosts, topology.head().host)

    def _replace(self, hosts: tuple[Host, ...] | None, head: str) -> Cluster:
        other = Cluster(self.name, hosts, head, self.provider)
        other._clients, other._upgrades = self._clients, self._upgrades
        return other

    def add_host(self, record: dict[str, Any], host: str) -> dict[str, Any]:
        """Return a record of a command's JSON output with the host that it is from."""
        return record if self.is_local else {**record, "host": host}


def make_transport(cluster: str, host: Host) -> RemoteTransport:
    """Return the transport to a cluster's agent on another host."""
    from tfcluster.transport.remote_transport import RemoteTransport

    return RemoteTransport(cluster, host)


def cluster_of(topology: ClusterTopology) -> Cluster:
    """Return the handle on the cluster of a topology."""
    return Cluster(topology.cluster, topology.hosts, topology.head().host)


def read_registry(name: str) -> Cluster | None:
    """Read a cluster from the registry; return None if it has no entry."""
    path = cluster_registry_path(name)
    if not path.exists():
        return None
    from tfcluster.core.hosts import RegistryEntry
    from tfcluster.protocol.serialization import NEWER_HINT, NewerFormatError, from_stored
    from tfcluster.providers import load_provider
    from tfcluster.providers.earlier import from_earlier

    try:
        entry = from_stored(RegistryEntry, from_earlier(json.loads(path.read_text())))
        provider = None
        if entry.provided is not None:
            provider = load_provider(entry.provided.provider)(name, entry.provided.facts)
        return Cluster(name, entry.hosts, entry.head, provider)
    except FileNotFoundError:
        return None
    except NewerFormatError as error:
        raise ClusterError(f"{path} was {error}", hint=NEWER_HINT) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ClusterError(
            f"{path}: cannot read the hosts of cluster {name!r}: {error}",
            hint="If you have its spec, remove the file: `up` and `down` in the folder of the spec write it again.",
        ) from error


def unknown_cluster(name: str) -> ClusterError:
    """Return the error that a cluster is not running, and that nothing of it is known here.

    `down` removes the note of the hosts, so that the hosts of an earlier cluster are only known from its spec.
    """
    return ClusterError(
        f"cluster {name!r} is not running, and this machine has no logs or runs of it",
        hint="If the cluster is on other hosts, run this command in the folder of its cluster.yaml. "
        "`tfcluster up` starts a cluster.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def register(cluster: Cluster) -> None:
    """Write a cluster's hosts to the registry; for a cluster on this machine only there are none to write.

    The entry is readable by this user only: it contains the environment variables of the agents, which may be private.

    An entry that cannot be read is not replaced, but raises an error, so that it is not lost. Without an entry, no
    later command would find the cluster.
    """
    registered = read_registry(cluster.name)
    provider = cluster.provider or (registered.provider if registered else None)
    path = cluster_registry_path(cluster.name)
    if cluster.is_local and provider is None:
        _remove(path)
        return
    from tfcluster.core.hosts import Provided, RegistryEntry
    from tfcluster.protocol.serialization import to_stored

    assert provider is None or provider.facts is not None, "there is something to remember"
    provided = None if provider is None or provider.facts is None else Provided(provider.name, provider.facts)
    entry = to_stored(RegistryEntry(cluster.head, tuple(cluster.hosts.values()), provided))
    _write(path, json.dumps(entry).encode(), f"the hosts of cluster {cluster.name!r}")


def record_spec(cluster: str, source: str) -> None:
    """Write the spec that a cluster was started from, as `spec_source` returns it, to the registry."""
    if recorded_spec(cluster) != source:
        _write(spec_record_path(cluster), os.fsencode(source), f"the spec of cluster {cluster!r}")


def recorded_spec(cluster: str) -> str | None:
    """Return the spec that a cluster was started from; None if that is unknown."""
    try:
        return os.fsdecode(spec_record_path(cluster).read_bytes())
    except OSError:
        return None


def unregister(name: str) -> None:
    """Remove a cluster from the registry; its folder stays while it contains logs or runs of this machine.

    An entry that cannot be read is not removed, but raises an error, so that it is not lost.
    """
    read_registry(name)
    _remove(cluster_registry_path(name))
    _remove(spec_record_path(name))
    _remove(authority_path(name))
    with contextlib.suppress(OSError):
        cluster_registry_path(name).parent.rmdir()


def _write(path: Path, data: bytes, what: str) -> None:
    """Write a file of the registry atomically, readable by this user only."""
    try:
        make_private_folder(path.parent)
        write_atomically(path, data, is_shared=True)
    except OSError as error:
        raise ClusterError(
            f"{path}: cannot write {what}: {error.strerror}",
            hint="Set XDG_STATE_HOME to a folder that you can write to.",
        ) from error


def _remove(path: Path) -> None:
    if path.exists():  # a read-only disk refuses to remove even what does not exist
        path.unlink(missing_ok=True)
