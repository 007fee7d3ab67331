"""The environment of servers and drivers, as far as TensorFlow's behaviour depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def no_proxy_env(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Variables that keep gRPC from dialling the cluster's own addresses through a web proxy.

    gRPC honours http_proxy and https_proxy even for localhost. no_grpc_proxy is gRPC's own exception list and
    replaces no_proxy where both are set, so what no_proxy says is carried over.
    """
    exceptions = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
    names = [name.strip() for name in exceptions.split(",") if name.strip()]
    names += [host for host in dict.fromkeys(hosts) if host not in names]
    return {"no_grpc_proxy": ",".join(names)}


def gpu_variables(environment: Mapping[str, str], gpu_ids: Sequence[str]) -> dict[str, str]:
    """Variables that show a process its own GPUs and no others.

    Args:
        environment: The agent's environment. Where it has a CUDA_VISIBLE_DEVICES, the ids are from that and mean
            what they mean there; else they are numbers in PCI bus order.
        gpu_ids: As CUDA_VISIBLE_DEVICES names them.
    """
    if not gpu_ids:
        return {"CUDA_VISIBLE_DEVICES": "-1"}
    order = {} if "CUDA_VISIBLE_DEVICES" in environment else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # else the first process on a GPU takes all its memory at once
        **order,
    }
