"""RPC handlers for access to the cluster: the environment of other processes, and the commands of `exec`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.subprocesses import watch_exit
from tfcluster.core.environment import client_address, client_variables, task_variables
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.network import free_port
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.paths import PACKAGE_ROOT
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.cluster import EnvironmentReply, EnvironmentRequest, ExecRequest
from tfcluster.runtime_dir import agent_socket


@dataclass
class _Command:
    """A command of `exec`."""

    process: ProcessHandle | None = None  # None until it has started
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(self, pid: int) -> None:
        """Watch the process of the command, which is about to execute it."""
        self.process = ProcessHandle.from_pid(pid)
        if self.process is not None:
            watch_exit(self.process, lambda status: self.has_ended.set())


class AccessHandlers:
    """The handlers, and the commands of `exec` by their `exec_id`."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._commands: dict[str, _Command] = {}

    async def environment(self, request: EnvironmentRequest) -> Response[NoReturn, EnvironmentReply]:
        """Return the environment of a task, or of a client on this host; see `EnvironmentRequest`."""
        context = self._context
        if request.process is not None:
            if request.process.exec_id not in self._commands:
                raise ClusterError("the `tfcluster exec` that started this command has ended")
            self._commands[request.process.exec_id].watch(request.process.pid)
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

    async def exec(self, request: ExecRequest) -> Response[NoReturn, Done]:
        """Wait until the command has ended, or the request is cancelled, and then end it; see `ExecRequest`."""
        command = self._commands[request.exec_id] = _Command()
        ends = [asyncio.ensure_future(each.wait()) for each in (command.has_ended, self._context.quitting)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if command.process is not None:
                await _end(command.process)
            raise
        finally:
            for end in ends:
                end.cancel()
            del self._commands[request.exec_id]
        yield Reply(Done())


async def _end(process: ProcessHandle) -> None:
    """End a process, and its process group if it leads one: by SIGTERM, and by SIGKILL after some seconds."""
    deadline = time.monotonic() + settings.EXEC_TERMINATE_SECONDS
    _signal(process, signal.SIGTERM)
    while process.is_alive() and time.monotonic() < deadline:
        await asyncio.sleep(settings.EXEC_POLL_SECONDS)
    _signal(process, signal.SIGKILL)


def _signal(process: ProcessHandle, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.is_alive():
            leads_group = os.getpgid(process.pid) == process.pid
            (os.killpg if leads_group else os.kill)(process.pid, number)


def _task_variables(context: AgentContext, short: str) -> dict[str, str]:
    topology = context.supervisor.require_cluster()
    for task in topology.on(context.host):
        if task.short != short:
            continue
        if names := task.lost_secrets:
            raise ClusterError(
                f"the secret {', '.join(names)} of {short} is lost", hint="`tfcluster up SPEC` supplies it again."
            )
        return task_variables(topology, task, os.environ)
    raise ClusterError(f"no task {short!r} on host {context.host!r}", exit_code=ExitCode.USAGE)


def _client_variables(context: AgentContext) -> dict[str, str]:
    topology = context.supervisor.require_cluster()
    name = context.host
    address = client_address(topology, name, free_port(topology.program_ports_on(name)))
    return client_variables(topology, name, address, os.environ)
