"""The agent's RPC server: its Unix domain socket, restored if the file is removed, and the connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.rpc.rpc_connection import Dispatcher, RpcConnection
from tfcluster.agent.timeout import wait_for
from tfcluster.os.atomic_file import remove_unless_file
from tfcluster.os.process_handle import peer_credentials
from tfcluster.runtime_dir import socket_path

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class AgentSocket:
    """The Unix domain socket on which the agent of a cluster listens.

    Raises:
        ClusterError: There is no private directory for the socket.
        OSError: The socket cannot be created.
    """

    def __init__(self, cluster: str, host: str) -> None:
        self._cluster = cluster
        self._host = host
        self._handler: Handler | None = None
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        self._open()

    async def serve(self, handler: Handler) -> None:
        """Start to accept connections on the event loop, each of which the handler serves."""
        self._handler = handler
        await self._serve()

    def is_in_place(self) -> bool:
        """Return whether a command that connects to the path reaches this socket."""
        return self._identity == _identity(self.path)

    def restore(self) -> None:
        """Create the socket again after its file was removed or replaced.

        If the socket cannot be created in its own directory, another directory is used. Open connections stay open.
        Raises what the constructor raises.
        """
        if self._server is not None:
            self._server.close()
        self._listener.close()
        self._open()
        if self._handler is not None:
            self._starting = asyncio.ensure_future(self._serve())

    def close(self) -> None:
        """Stop accepting connections.

        The file stays, so that other commands see that the agent is still alive.
        """
        if self._starting is not None:
            self._starting.cancel()
        if self._server is not None:
            self._server.close()
        self._listener.close()

    def remove(self) -> None:
        """Remove the socket's file."""
        if self.is_in_place():
            self.path.unlink(missing_ok=True)

    def _open(self) -> None:
        """Bind the socket and listen on it.

        Replaces the file that a dead agent left at the path: this agent holds the lock, so no other one uses it.
        """
        self._identity: tuple[int, int] | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path: Path = socket_path(self._cluster, self._host)
        remove_unless_file(self.path)  # a directory too
        self.path.unlink(missing_ok=True)
        previous = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        finally:
            os.umask(previous)
        self._identity = _identity(self.path)
        self._listener.listen(settings.AGENT_BACKLOG)

    async def _serve(self) -> None:
        assert self._handler is not None, "`serve` comes first"
        self._server = await asyncio.start_unix_server(
            self._handler, sock=self._listener, limit=settings.IO_BLOCK_BYTES
        )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if the file does not exist."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class RpcServer:
    """Serves the agent's methods, to the commands of this user only."""

    def __init__(self, context: AgentContext, dispatcher: Dispatcher) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._connections: set[RpcConnection] = set()
        self._idle_exit: asyncio.TimerHandle | None = None
        # Descriptors of connections that stay open until this process has exited, which tells the commands that wait.
        self._kept: list[int] = []

    async def serve(self, agent_socket: AgentSocket) -> None:
        """Serve until the agent shuts down, or is idle and has no connections."""
        self._schedule_idle_exit(settings.AGENT_FIRST_REQUEST_SECONDS)
        await agent_socket.serve(self._serve_connection)
        await self._context.quitting.wait()
        agent_socket.close()
        # The command that requested the shutdown, and commands that follow a stream, still get their final message.
        with contextlib.suppress(asyncio.TimeoutError):
            responses = asyncio.gather(*(connection.wait_for_responses() for connection in self._connections))
            await wait_for(responses, settings.AGENT_DRAIN_SECONDS)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._context.quitting.is_set():  # closed without a greeting: the command starts the next agent
            writer.close()
            return
        connection = RpcConnection(self._context, self._dispatcher, reader, writer, self._connections)
        self._connections.add(connection)
        try:
            if peer_credentials(writer.get_extra_info("socket"))[1] == os.getuid():
                await connection.serve()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the command disconnected, or the event loop ends: asyncio would log the cancellation as an error
        finally:
            self._connections.remove(connection)
            if self._exits():
                with contextlib.suppress(OSError):  # the command has closed the connection
                    self._kept.append(os.dup(writer.get_extra_info("socket").fileno()))
            if connection.has_request or self._idle_exit is None:
                self._schedule_idle_exit(0.0)
            writer.close()

    def _exits(self) -> bool:
        """Return whether the agent shuts down, or exits because it is idle and no command is connected."""
        is_unused = self._context.is_idle and not self._connections
        return is_unused or self._context.quitting.is_set()

    def _schedule_idle_exit(self, delay: float) -> None:
        """Exit in `delay` seconds if the agent is idle and has no connections then; replaces an earlier schedule."""

        def exit_if_idle() -> None:
            self._idle_exit = None
            if self._context.is_idle and not self._connections:
                self._context.quitting.set()
            while self._kept and not self._context.quitting.is_set():
                os.close(self._kept.pop())

        if self._idle_exit is not None:
            self._idle_exit.cancel()
        self._idle_exit = asyncio.get_running_loop().call_later(delay, exit_if_idle)
