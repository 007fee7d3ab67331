"""The agent's process, from its start by a transport to its end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import resource
import sys
from functools import partial
from pathlib import Path

from tfcluster.agent.agent import Agent
from tfcluster.agent.agent_socket import AgentSocket
from tfcluster.agent.process_marks import mark_of, mark_this_process
from tfcluster.agent.rpc_server import RpcServer
from tfcluster.agent.state_dir import StateDir
from tfcluster.errors import ClusterError
from tfcluster.paths import set_state_home, state_folder
from tfcluster.processes import daemonize
from tfcluster.protocol import api
from tfcluster.protocol.codec import encode

# Words of earlier agents that are more than this are forgotten when the next one starts.
_LOG_BYTES = 1 << 20


def main(line: str) -> None:
    """Be the agent of a cluster on this host.

    Args:
        line: What the starter says: a JSON object with `cluster`, `host` (what the cluster calls this machine) and
            `state` (the folder of all clusters' state).

    One line on standard output tells whoever started it that the socket is there, whether it is this agent's or
    that of one that was first, or what is wrong. Standard error is the agent's log.
    """
    said = json.loads(line)
    cluster, host = said["cluster"], said["host"]
    set_state_home(Path(said["state"]))
    starter = _ReadinessPipe()
    _raise_descriptor_limit()
    folder = StateDir(state_folder(cluster, host))
    agent_socket = None
    try:
        folder.make()
        if not folder.lock():
            starter.tell(api.reply({"serves": False}))
            return
        mark_this_process(mark_of(folder.path))
        _redirect_log(folder.agent_log)
        folder.on_recreated = partial(_redirect_log, folder.agent_log)
        agent_socket = AgentSocket(cluster, host)
        folder.publish_socket(agent_socket.path)
        daemonize.set_process_title(f"tfcluster: {cluster} agent on {host}")
        asyncio.run(_run(cluster, host, folder, agent_socket, starter))
    except (ClusterError, OSError) as problem:
        error = problem if isinstance(problem, ClusterError) else ClusterError(f"the agent failed: {problem}")
        if agent_socket is not None:
            agent_socket.remove()
        folder.unlock()
        starter.tell(api.error(error))
        sys.exit(int(error.exit_code))


async def _run(cluster: str, host: str, folder: StateDir, agent_socket: AgentSocket, starter: _ReadinessPipe) -> None:
    service = Agent(cluster, host, folder, agent_socket)
    await service.adopt()
    watching = asyncio.ensure_future(service.watch())
    starter.tell(api.reply({"serves": True}))
    await RpcServer(service).serve(agent_socket)
    watching.cancel()
    # Before the lock goes: after that the socket at this path may be the next agent's.
    agent_socket.remove()
    service.stop()


class _ReadinessPipe:
    """Whoever started the agent and waits for its line, or for the end of file that says that it died before.

    Standard output is kept under a descriptor that the agent's children let go of, which its standard output is not:
    a child that outlives the agent would keep the one who waits from reading the end.
    """

    def __init__(self) -> None:
        self._line: int | None = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.close(nothing)

    def tell(self, message: dict[str, object]) -> None:
        """Write the line and hang up, so that nobody needs to wait for the agent's end; later lines go nowhere."""
        if self._line is None:
            return
        with contextlib.suppress(BrokenPipeError):  # the command that started us has been interrupted
            os.write(self._line, encode(message))
        os.close(self._line)
        self._line = None


def _raise_descriptor_limit() -> None:
    """Take all descriptors that this user may have: a task needs two, and the usual limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _BestEffortStderr(io.TextIOBase):
    """Standard error that a full disk costs words, and nobody who prints to it an exception."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))
        return len(text)


def _redirect_log(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    if os.fstat(log).st_size > _LOG_BYTES:
        os.ftruncate(log, 0)
    os.dup2(log, 2)
    os.close(log)
    sys.stderr = _BestEffortStderr()
