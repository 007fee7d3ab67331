"""A viewer: answers one command in place of an agent of an older version, with which the command cannot speak.

It reads the files of the cluster on this host. The older agent continues: a viewer locks nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

from tfcluster.agent.context import AgentContext
from tfcluster.agent.logs.log_reader import last_up
from tfcluster.agent.rpc.rpc_connection import Dispatcher, RpcConnection
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.upload import Upload
from tfcluster.errors import ClusterError
from tfcluster.os.daemonize import set_process_title
from tfcluster.protocol.api import Request, Response
from tfcluster.protocol.api.cluster import StatusRequest, TopologyRequest
from tfcluster.protocol.api.logs import EventsRequest, LogsRequest
from tfcluster.protocol.api.outputs import OutputsRequest, ReadOutputsRequest
from tfcluster.protocol.api.runs import FailingRunsRequest, RunsRequest
from tfcluster.protocol.codec import OWN_GREETING
from tfcluster.runtime_dir import agent_pid, agent_socket, secrets_path

# The requests that the files of a cluster answer.
_ANSWERED = (
    *(TopologyRequest, StatusRequest, LogsRequest, EventsRequest, RunsRequest, FailingRunsRequest),
    *(OutputsRequest, ReadOutputsRequest),
)


async def view(cluster: str, host: str, state_dir: StateDir, release: str, report_ready: Callable[[], None]) -> None:
    """Answer the command at the other end of standard input until it disconnects.

    `release` is that of the older agent. `report_ready` is called when the files have been read. Raises JournalError if
    the journal is damaged.
    """
    set_process_title(f"tfcluster: {cluster} viewer on {host}")
    context = AgentContext(cluster, host, state_dir, secrets_path(agent_socket(cluster, host)))
    context.pid = agent_pid(cluster, host) or context.pid
    if (record := state_dir.journal.read(host)) is not None:
        context.supervisor.view(record)
        context.runs.view(last_up(state_dir.events) or 0.0)
    report_ready()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the command reads it no longer
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=0))
    await RpcConnection(context, _ViewerDispatcher(context, release), reader, writer, []).serve()


class _ViewerDispatcher(Dispatcher):
    def __init__(self, context: AgentContext, release: str) -> None:
        super().__init__(context)
        self._error = ClusterError(
            f"the agent of {context.cluster!r} is tfcluster {release}, older than this command, {OWN_GREETING}, which "
            "can only show what its files record",
            hint="`tfcluster up` with the spec upgrades the agent. Tasks and runs continue meanwhile.",
        )

    def respond(self, request: Request[Any, Any], upload: Upload) -> Response[Any, Any]:
        return super().respond(request, upload) if isinstance(request, _ANSWERED) else self._reject()

    async def _reject(self) -> Response[Any, Any]:
        raise self._error
        yield  # makes this function an async generator
