"""RPC handlers for access to the cluster: the environment of other processes."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tfcluster.agent.context import AgentContext
from tfcluster.core.environment import client_address, client_variables, task_variables
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.network import free_port
from tfcluster.paths import PACKAGE_ROOT
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest
from tfcluster.runtime_dir import agent_socket


async def get_environment(context: AgentContext, request: EnvironmentRequest) -> Response[NoReturn, EnvironmentReply]:
    """Return the environment of a task, or of a client on this host; see `EnvironmentRequest`."""
    variables = _client_variables(context) if request.task is None else _task_variables(context, request.task)
    yield Reply(
        EnvironmentReply(
            variables,
            python=sys.executable,
            code=str(PACKAGE_ROOT),
            socket=str(agent_socket(context.cluster, context.host)),
            state=str(context.state_dir.path),
            network=context.network.find(context.supervisor.require_cluster().network),
        )
    )


def _task_variables(context: AgentContext, short: str) -> dict[str, str]:
    topology = context.supervisor.require_cluster()
    for task in topology.on(context.host):
        if task.short != short:
            continue
        if names := task.lost_secrets:
            raise ClusterError(
                f"the secret {', '.join(names)} of {short} is lost", hint="`tfcluster up SPEC` gives it again."
            )
        return task_variables(topology, task, os.environ)
    raise ClusterError(f"no task {short!r} on host {context.host!r}", exit_code=ExitCode.USAGE)


def _client_variables(context: AgentContext) -> dict[str, str]:
    topology = context.supervisor.require_cluster()
    name = context.host
    address = client_address(topology, name, free_port(topology.program_ports_on(name)))
    return client_variables(topology, name, address, os.environ)
