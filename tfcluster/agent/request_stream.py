"""What a command sends behind its request: a file in blocks, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tfcluster.protocol.codec import CHUNK_HEADER, chunk_length


class RequestStream:
    """The command's side of a connection, once its request is read.

    Args:
        reader: The connection.
        expects_file: Whether a file follows the request. Without one all that can come is the end.
    """

    def __init__(self, reader: asyncio.StreamReader, *, expects_file: bool) -> None:
        self._reader = reader
        self._complete = asyncio.Event()
        if not expects_file:
            self._complete.set()

    async def blocks(self) -> AsyncIterator[bytes]:
        """The file, block by block; the memory it takes does not depend on its size.

        Raises:
            ConnectionError: The command went away before the file's end.
            ClusterError: What arrived is no block.
        """
        try:
            while length := chunk_length(await self._reader.readexactly(CHUNK_HEADER)):
                yield await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the file was not sent to its end") from error
        finally:
            self._complete.set()

    async def hung_up(self) -> None:
        """Wait until the command hangs up, as far as a file that is being sent leaves that to see."""
        await self._complete.wait()
        while await self._reader.read(1 << 16):
            continue
