"""The cluster registry, comparable to a kubeconfig: the hosts of each cluster that is not on this machine only.

`up` writes an entry before anything starts; `down` removes it once every host has confirmed that nothing is running.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict

from tfcluster.client.cluster import Cluster
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.paths import cluster_registry_path
from tfcluster.protocol.serialization import decode


def read(name: str) -> Cluster | None:
    """Read a cluster from the registry.

    Returns:
        The cluster; None if it has no entry.

    Raises:
        ClusterError: The entry cannot be read.
    """
    path = cluster_registry_path(name)
    try:
        entry = json.loads(path.read_text())
        return Cluster(name, tuple(decode(Host, each) for each in entry["hosts"]), entry["head"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClusterError(
            f"{path}: cannot read the hosts of cluster {name!r}: {error}",
            hint="If you have its spec, remove the file: `up` and `down` in the folder of the spec write it again.",
        ) from error


def write(cluster: Cluster) -> None:
    """Write a cluster's hosts to the registry, atomically and readable by this user only.

    The entry contains the environment variables of the agents, which may be private.

    Raises:
        ClusterError: The entry cannot be written; without it no later command would find the cluster.
    """
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


def remove(name: str) -> None:
    """Remove a cluster from the registry; its folder stays while it contains logs or runs of this machine."""
    path = cluster_registry_path(name)
    if path.exists():  # a read-only disk refuses to remove even what does not exist
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
