"""Environment variables of servers and drivers that affect TensorFlow and gRPC: proxies and visible GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def no_proxy_env(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return the variables that keep gRPC from connecting to the cluster's own addresses through an HTTP proxy.

    gRPC honours http_proxy and https_proxy even for localhost. no_grpc_proxy is gRPC's own list of exceptions. If it
    is set, gRPC ignores no_proxy, so the entries of no_proxy are copied to it.

    Args:
        environment: The environment of the process.
        hosts: The hosts of the cluster's addresses.
    """
    exceptions = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
    names = [name.strip() for name in exceptions.split(",") if name.strip()]
    names += [host for host in dict.fromkeys(hosts) if host not in names]
    return {"no_grpc_proxy": ",".join(names)}


def gpu_variables(environment: Mapping[str, str], gpu_ids: Sequence[str]) -> dict[str, str]:
    """Return the variables that make only a process's own GPUs visible to it.

    Args:
        environment: The agent's environment. If it contains CUDA_VISIBLE_DEVICES, the ids are taken from that list and
            have the same meaning as there; otherwise they are indices in PCI bus order.
        gpu_ids: The GPUs, as CUDA_VISIBLE_DEVICES lists them; empty to hide all GPUs.
    """
    if not gpu_ids:
        return {"CUDA_VISIBLE_DEVICES": "-1"}
    order = {} if "CUDA_VISIBLE_DEVICES" in environment else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # else the first process on a GPU allocates all its memory
        **order,
    }
