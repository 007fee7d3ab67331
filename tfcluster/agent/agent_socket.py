"""The agent's Unix socket: created, served, and created again where its file was removed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from tfcluster.places import socket_path
from tfcluster.protocol.framing import LINE_LIMIT
from tfcluster.runtime.files import remove_unless_file

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_BACKLOG = 64


class AgentSocket:
    """The socket at which the agent of a cluster listens.

    Args:
        cluster: The cluster's name.
        host: What the cluster calls this host.

    Attributes:
        path: Its file.

    Raises:
        ClusterError: There is no private folder for it.
        OSError: It cannot be created.
    """

    def __init__(self, cluster: str, host: str) -> None:
        self._cluster = cluster
        self._host = host
        self._handler: Handler | None = None
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        self._open()

    async def serve(self, handler: Handler) -> None:
        """Have the event loop call `handler` for each connection from now on."""
        self._handler = handler
        await self._serve()

    def is_in_place(self) -> bool:
        """Whether a command that connects to the path reaches this socket."""
        return self._identity == _identity(self.path)

    def restore(self) -> None:
        """Create it again where its file was removed or replaced; in another folder where its own cannot be made.

        Connections that are open stay open.

        Raises:
            ClusterError: There is no private folder for it.
            OSError: It cannot be created.
        """
        if self._server is not None:
            self._server.close()
        self._listener.close()
        self._open()
        if self._handler is not None:
            self._starting = asyncio.ensure_future(self._serve())

    def close(self) -> None:
        """Accept no more connections; the file stays, and tells other commands that the agent still lives."""
        if self._starting is not None:
            self._starting.cancel()
        if self._server is not None:
            self._server.close()
        self._listener.close()

    def remove(self) -> None:
        """Remove the file."""
        if self.is_in_place():
            self.path.unlink(missing_ok=True)

    def _open(self) -> None:
        """Bind it, replacing what an agent that died left at the path: this one holds the lock."""
        self._identity: tuple[int, int] | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path: Path = socket_path(self._cluster, self._host)
        remove_unless_file(self.path)  # a folder too
        self.path.unlink(missing_ok=True)
        previous = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        finally:
            os.umask(previous)
        self._identity = _identity(self.path)
        self._listener.listen(_BACKLOG)

    async def _serve(self) -> None:
        assert self._handler is not None, "`serve` comes first"
        self._server = await asyncio.start_unix_server(self._handler, sock=self._listener, limit=LINE_LIMIT)


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and inode of a file; None where there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
