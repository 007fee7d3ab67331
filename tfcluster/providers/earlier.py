"""Read what tfcluster 0.2.0 has stored of hosts: there, each provider had its own fields."""

from __future__ import annotations

from typing import Any


def from_earlier(document: Any) -> Any:
    """Return a stored document with the provider of a cluster, and of each of its `hosts`, in the field `provided`."""
    if not isinstance(document, dict):
        return document
    hosts = document.get("hosts")
    document = {**document, "provided": document.get("provided") or _of_cluster(document)}
    if isinstance(hosts, list):
        document["hosts"] = [_of_host(each) if isinstance(each, dict) else each for each in hosts]
    return document


def _of_cluster(entry: dict[str, Any]) -> dict[str, Any] | None:
    for key, provider in (("job", "slurm"), ("pods", "kubernetes")):
        if entry.get(key) is not None:
            return {"provider": provider, "facts": entry[key]}
    return None


def _of_host(host: dict[str, Any]) -> dict[str, Any]:
    if host.get("provided") is not None:
        return host
    if host.get("job") is not None:
        return {**host, "provided": {"provider": "slurm", "facts": host["job"]}}
    return {**host, "provided": {"provider": "kubernetes", "facts": {}}} if host.get("image") else host
