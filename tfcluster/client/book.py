"""The address book: on which hosts a cluster is that is not on this machine alone.

`up` writes it before anything starts, `down` removes it once every host has confirmed that nothing runs there.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict

from tfcluster.client.cluster import Cluster
from tfcluster.errors import ClusterError
from tfcluster.model.hosts import Host
from tfcluster.places import address_book


def read(name: str) -> Cluster | None:
    """The cluster as it was noted; None where nothing was.

    Raises:
        ClusterError: What was noted cannot be read.
    """
    path = address_book(name)
    try:
        noted = json.loads(path.read_text())
        return Cluster(name, tuple(map(Host.from_json, noted["hosts"])), noted["head"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClusterError(
            f"{path}: cannot read on which hosts cluster {name!r} is: {error}",
            hint="Where you know its spec, remove the file: `up` and `down` in the spec's folder write and clear it.",
        ) from error


def write(cluster: Cluster) -> None:
    """Note a cluster's hosts, for this user alone: the environment of agents may be nobody else's business.

    Raises:
        ClusterError: That cannot be written; without it no later command would find the cluster.
    """
    path = address_book(cluster.name)
    fresh = path.with_suffix(f".{os.getpid()}")
    noted = {"head": cluster.head, "hosts": [asdict(host) for host in cluster.hosts.values()]}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(noted, file)
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ClusterError(
            f"{path}: cannot note on which hosts cluster {cluster.name!r} is: {error.strerror}",
            hint="Set XDG_STATE_HOME to a folder that you can write to.",
        ) from error


def remove(name: str) -> None:
    """Forget a cluster's hosts; its folder stays while it has logs or runs of this machine."""
    path = address_book(name)
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
