"""The environment of servers and drivers, as far as TensorFlow's behaviour depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def without_proxy(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Variables that keep gRPC from dialling the cluster's own addresses through a web proxy.

    gRPC honours http_proxy and https_proxy even for localhost. no_grpc_proxy is gRPC's own exception list and
    replaces no_proxy where both are set, so what no_proxy says is carried over.
    """
    exceptions = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
    names = [name.strip() for name in exceptions.split(",") if name.strip()]
    names += [host for host in dict.fromkeys(hosts) if host not in names]
    return {"no_grpc_proxy": ",".join(names)}
