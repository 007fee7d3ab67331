"""The agent's Unix domain socket: bind, serve, and restore it if its file is removed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from tfcluster import settings
from tfcluster.processes.files import remove_unless_file
from tfcluster.runtime_dir import socket_path

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class AgentSocket:
    """The Unix domain socket on which the agent of a cluster listens.

    Args:
        cluster: The cluster's name.
        host: The cluster's name for this host.

    Attributes:
        path: The socket's file.

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
        """Start to accept connections on the event loop.

        Args:
            handler: Called for each connection.
        """
        self._handler = handler
        await self._serve()

    def is_in_place(self) -> bool:
        """Return whether a command that connects to the path reaches this socket."""
        return self._identity == _identity(self.path)

    def restore(self) -> None:
        """Create the socket again after its file was removed or replaced.

        If the socket cannot be created in its own directory, another directory is used. Open connections stay open.

        Raises:
            ClusterError: There is no private directory for the socket.
            OSError: The socket cannot be created.
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
            self._handler, sock=self._listener, limit=settings.RPC_LINE_MAX_BYTES
        )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if the file does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
