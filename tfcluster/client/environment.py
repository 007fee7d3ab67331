"""The environment by which a process is part of a cluster: that of a task, or of a client, here or on another host."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import warn
from tfcluster.client.runs.leader import read_topology
from tfcluster.core.environment import client_variables, no_proxy_env
from tfcluster.core.topology import OPEN, join_address, matching_tasks
from tfcluster.errors import ClusterError, usage_error
from tfcluster.os.network import free_port
from tfcluster.paths import LOCAL_HOST
from tfcluster.private_network import PrivateNetwork
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest


@dataclass(frozen=True)
class ExecTarget:
    """Where a process of a cluster runs, and as what."""

    host: str
    task: str | None = None  # short name of the task whose environment it has; None for that of a client


def find_exec_target(cluster: Cluster, name: str) -> ExecTarget:
    """Return what the name of a host or a task means.

    A task is named `worker:1`, `/job:worker/task:1`, or by its job if that has one task.
    """
    if name in cluster.hosts:
        return ExecTarget(name)
    tasks = {task.short: task for task in read_topology(cluster).tasks}
    try:
        matches = matching_tasks([name], list(tasks))
    except ClusterError as error:
        hosts = ", ".join(cluster.hosts)
        raise usage_error(f"no task or host {name!r}", f"{error.hint} The hosts are {hosts}.") from None
    if len(matches) > 1:
        raise usage_error(f"{name!r} has {len(matches)} tasks", f"Name one: {', '.join(matches)}.")
    return ExecTarget(tasks[matches[0]].host, matches[0])


def request_environment(cluster: Cluster, target: ExecTarget) -> EnvironmentReply:
    """Ask the agent of a host for an environment."""
    return cluster.connect(target.host).call(EnvironmentRequest(target.task))


def environment_here(cluster: Cluster) -> tuple[dict[str, str], PrivateNetwork | None]:
    """Return the environment of a client of the cluster on this machine; a note says if it is not one of its hosts.

    With the variables comes the private network in which alone a client can connect to the servers; None for none.
    """
    if LOCAL_HOST in cluster.hosts:
        reply = request_environment(cluster, ExecTarget(LOCAL_HOST))
        # The agent has replied with the exceptions from the proxy of its own environment.
        proxy = no_proxy_env(os.environ, reply.variables["no_grpc_proxy"].split(","))
        return {**reply.variables, **proxy}, reply.network
    address = join_address(socket.gethostname(), free_port())
    topology = read_topology(cluster)
    if topology.network != OPEN:
        warn(
            f"note: this machine is not a host of {cluster.name}, whose servers only its hosts can connect to: "
            f"`tfcluster exec --on {cluster.head} -- COMMAND` runs a command there"
        )
    return client_variables(topology, None, address, os.environ), None
