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

from tfcluster.agent.agent_socket import AgentSocket
from tfcluster.agent.folder import StateFolder
from tfcluster.agent.marked import mark_of, mark_this_process
from tfcluster.agent.server import Server
from tfcluster.agent.service import Service
from tfcluster.errors import ClusterError
from tfcluster.places import state_folder, use_state_root
from tfcluster.protocol import messages
from tfcluster.protocol.framing import encode
from tfcluster.runtime import child
from tfcluster.runtime.files import remove_unless_file

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
    use_state_root(Path(said["state"]))
    starter = _Starter()
    _raise_descriptor_limit()
    folder = StateFolder(state_folder(cluster, host))
    agent_socket = None
    try:
        folder.make()
        if not folder.lock():
            starter.tell(messages.reply({"serves": False}))
            return
        mark_this_process(mark_of(folder.path))
        _log_to(folder.agent_log)
        folder.mended = partial(_log_to, folder.agent_log)
        agent_socket = AgentSocket(cluster, host)
        folder.tell_where(agent_socket.path)
        child.set_title(f"tfcluster: {cluster} agent on {host}")
        asyncio.run(_run(cluster, host, folder, agent_socket, starter))
    except (ClusterError, OSError) as problem:
        error = problem if isinstance(problem, ClusterError) else ClusterError(f"the agent failed: {problem}")
        if agent_socket is not None:
            agent_socket.remove()
        folder.unlock()
        starter.tell(messages.error(error))
        sys.exit(int(error.exit_code))


async def _run(cluster: str, host: str, folder: StateFolder, agent_socket: AgentSocket, starter: _Starter) -> None:
    service = Service(cluster, host, folder, agent_socket)
    await service.adopt()
    watching = asyncio.ensure_future(service.watch())
    starter.tell(messages.reply({"serves": True}))
    await Server(service).serve(agent_socket)
    watching.cancel()
    # Before the lock goes: after that the socket at this path may be the next agent's.
    agent_socket.remove()
    service.stop()


class _Starter:
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


class _Words(io.TextIOBase):
    """Standard error that a full disk costs words, and nobody who prints to it an exception."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))
        return len(text)


def _log_to(path: Path) -> None:
    remove_unless_file(path)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    if os.fstat(log).st_size > _LOG_BYTES:
        os.ftruncate(log, 0)
    os.dup2(log, 2)
    os.close(log)
    sys.stderr = _Words()
