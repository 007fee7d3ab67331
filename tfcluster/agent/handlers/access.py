"""RPC handlers for processes besides the servers and runs: the environment by which they are part of the cluster."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tfcluster.agent.context import AgentContext
from tfcluster.agent.state.secret_store import missing_secrets
from tfcluster.core.environment import client_address, client_variables, task_variables
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.network import free_port
from tfcluster.paths import PACKAGE_ROOT
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest
from tfcluster.runtime_dir import agent_socket


class AccessHandlers:
    """Handles the requests by which other processes join the cluster."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    async def environment(self, request: EnvironmentRequest) -> Response[NoReturn, EnvironmentReply]:
        """Return the environment of a task, or of a client on this host; see `EnvironmentRequest`."""
        variables = self._client_variables() if request.task is None else self._task_variables(request.task)
        yield Reply(
            EnvironmentReply(
                variables,
                python=sys.executable,
                code=str(PACKAGE_ROOT),
                socket=str(agent_socket(self._context.cluster, self._context.host)),
                state=str(self._context.state_dir.path),
                network=self._context.network.find(self._context.supervisor.require_cluster().network),
            )
        )

    def _task_variables(self, short: str) -> dict[str, str]:
        topology = self._context.supervisor.require_cluster()
        for task in topology.on(self._context.host):
            if task.short != short:
                continue
            if names := missing_secrets(task):
                raise ClusterError(
                    f"the secret {', '.join(names)} of {short} is lost", hint="`tfcluster up SPEC` gives it again."
                )
            return task_variables(topology, task, os.environ)
        raise ClusterError(f"no task {short!r} on host {self._context.host!r}", exit_code=ExitCode.USAGE)

    def _client_variables(self) -> dict[str, str]:
        topology = self._context.supervisor.require_cluster()
        name = self._context.host
        address = client_address(topology, name, free_port(topology.program_ports_on(name)))
        return client_variables(topology, name, address, os.environ)
