"""The environment by which a process is part of a cluster, here or on another host, and commands that run with it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.rpc.parallel import warn
from tfcluster.client.runs.locate import read_topology
from tfcluster.core.environment import client_variables, no_proxy_env
from tfcluster.core.topology import OPEN, join_address, matching_tasks
from tfcluster.errors import ClusterError, usage_error
from tfcluster.os.network import free_port
from tfcluster.paths import LOCAL_HOST
from tfcluster.private_network import PrivateNetwork
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest, ExecRequest
from tfcluster.transport.cluster_process import become, remote_argv

_OF_KEYS = (signal.SIGINT, signal.SIGQUIT)


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


def replace_process(cluster: Cluster, target: ExecTarget | None, command: Sequence[str]) -> NoReturn:
    """Replace this process by a command with the cluster's environment; on another host, run it and exit as it does.

    Without a target it is a client on this machine.
    """
    if target is None:
        become(*environment_here(cluster), command)
    if target.host == LOCAL_HOST:
        environment = request_environment(cluster, target)
        become(environment.variables, environment.network, command)
    sys.exit(_run_on_host(cluster, target, command))


def _run_on_host(cluster: Cluster, target: ExecTarget, command: Sequence[str]) -> int:
    """Run a command on another host by a program that has this process's streams; return its exit code.

    The program may end without the command, as ssh and docker do at a Ctrl-C. So the agent ends the command when this
    process has ended.
    """
    client = cluster.connect(target.host)
    exec_id = secrets.token_hex(8)
    # This comes before the request for the environment, so the agent knows the id before the command names it.
    with contextlib.closing(client.stream(ExecRequest(exec_id))) as running:
        environment = request_environment(cluster, target)
        argv = remote_argv(environment, target.task, command, exec_id=exec_id)
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        line = client.transport.command_line(argv, is_terminal=is_terminal)
        passed: list[int] = []
        with subprocess.Popen(line) as process:

            def pass_on(number: int, frame: FrameType | None) -> None:
                if not (is_terminal and number in _OF_KEYS):  # a terminal sends these to the program too
                    passed.append(number)
                    process.send_signal(number)

            for number in (*_OF_KEYS, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, pass_on)
            code = process.wait()
        if passed and client.transport.has_lost_host(code):  # as ssh, which a signal has ended
            code = -passed[0]
        # docker says that all went well when a signal has ended it, and the command as yet runs.
        if passed and code == 0 and not running.wait_readable(settings.EXEC_END_SECONDS):
            code = -passed[0]
    return code if code >= 0 else 128 - code
