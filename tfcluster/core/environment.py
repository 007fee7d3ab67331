"""The environment variables by which a process is part of a cluster: addresses, proxies, GPUs and the spec's own.

They are also formatted as text that a shell, docker, python-dotenv or a program reads back unchanged.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from tfcluster.core.tf_config import make_client_config, make_tf_config
from tfcluster.core.topology import ClusterTopology, Task, join_address

# Values that python-dotenv and docker both read unchanged up to the end of the line: neither a quote nor white space at
# an end, and nothing that python-dotenv reads as a comment or a reference to another variable.
_PLAIN = re.compile(r"""(?!['"\s])(?!.*\s(?:\#|$))(?!.*\$\{)[^\r\n]*""")


def task_variables(topology: ClusterTopology, task: Task, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that is to see what a task's server sees, given its agent's environment."""
    config = make_tf_config(topology.addresses(), task.job, task.index)
    return {**_cluster_variables(topology, config), **server_variables(topology, task, environment)}


def server_variables(topology: ClusterTopology, task: Task, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set for a task's server, given the environment of the agent on the task's host."""
    gpus = gpu_variables({**environment, **task.env}, task.gpu_ids)
    return {**_proxy_variables(topology, environment), **gpus, **task.variables}


def client_variables(
    topology: ClusterTopology, host: str | None, address: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a process that is not a task but a client of the cluster's servers, such as a script.

    `host` is None for a machine that is not part of the cluster. `address` is the `host:port` of the chief.
    `environment` is the process's own.
    """
    config = make_client_config(topology.addresses(), address)
    own = next((dict(each.env) for each in topology.hosts if each.name == host), {})
    # GPUs that servers of this host have to themselves are not for other processes.
    has_gpus = any(task.gpu_ids for task in topology.tasks if task.host == host)
    gpus = {"CUDA_VISIBLE_DEVICES": "-1"} if has_gpus else {}
    return {**_cluster_variables(topology, config), **_proxy_variables(topology, environment), **gpus, **own}


def client_address(topology: ClusterTopology, host: str, port: int) -> str:
    """Return the `host:port` (a program port if the host has any) at which other hosts reach a client's own server."""
    address = next((each.address for each in topology.hosts if each.name == host), host)
    # Forwarders connect the program ports of localhost on all hosts.
    return join_address("localhost" if topology.program_ports_on(host) else address, port)


def add_to(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a cluster's variables, which keeps its own exceptions from the proxy."""
    exceptions = variables["no_grpc_proxy"].split(",")
    return {**environment, **variables, **no_proxy_env(environment, exceptions)}


def _cluster_variables(topology: ClusterTopology, config: Mapping[str, object]) -> dict[str, str]:
    master = f"grpc://{topology.head().address}"
    return {
        "TF_CONFIG": json.dumps({**config, "session_master": master}),
        "TFCLUSTER_CLUSTER": topology.cluster,
        "TFCLUSTER_MASTER": master,
    }


def _proxy_variables(topology: ClusterTopology, environment: Mapping[str, str]) -> dict[str, str]:
    return no_proxy_env(environment, [each.address_host for each in (*topology.tasks, *topology.reserved)])


def no_proxy_env(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return the variables that keep gRPC from connecting to the cluster's own addresses through an HTTP proxy.

    gRPC honours http_proxy and https_proxy even for localhost. no_grpc_proxy is gRPC's own list of exceptions. If it
    is set, gRPC ignores no_proxy, so the entries of no_proxy are copied to it.
    """
    exceptions = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
    names = [name.strip() for name in exceptions.split(",") if name.strip()]
    names += [host for host in dict.fromkeys(hosts) if host not in names]
    return {"no_grpc_proxy": ",".join(names)}


def gpu_variables(environment: Mapping[str, str], gpu_ids: Sequence[str]) -> dict[str, str]:
    """Return the variables that make only a process's own GPUs visible to it; without GPUs, it sees none.

    If the agent's environment contains CUDA_VISIBLE_DEVICES, the ids are from that list and have the same meaning
    as there; otherwise they are indices in PCI bus order.
    """
    if not gpu_ids:
        return {"CUDA_VISIBLE_DEVICES": "-1"}
    order = {} if "CUDA_VISIBLE_DEVICES" in environment else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # else the first process on a GPU allocates all its memory
        **order,
    }


def format_sh(variables: Mapping[str, str]) -> str:
    """Return commands for sh that export variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def format_json(variables: Mapping[str, str]) -> str:
    """Return variables as a JSON object."""
    return json.dumps(variables)


def format_dotenv(variables: Mapping[str, str]) -> str:
    """Return variables as a file for python-dotenv, and for `docker run --env-file` if no value requires quotes."""
    return "\n".join(f"{name}={_quote(value)}" for name, value in variables.items())


def needs_quotes(value: str) -> bool:
    """Return whether a value requires quotes in a dotenv file, which `docker run --env-file` would add to the value."""
    return _PLAIN.fullmatch(value) is None


def _quote(value: str) -> str:
    if not needs_quotes(value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
