"""The request stream of a connection: what a command uploads after its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tfcluster.protocol.codec import CHUNK_HEADER, chunk_length


class RequestStream:
    """The receiving side of a connection after the request has been read.

    Args:
        reader: The connection.
        expects_file: Whether a file follows the request. If False, only the end of file can follow.
    """

    def __init__(self, reader: asyncio.StreamReader, *, expects_file: bool) -> None:
        self._reader = reader
        self._complete = asyncio.Event()
        if not expects_file:
            self._complete.set()

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield the uploaded file in chunks; the memory use does not depend on the file's size.

        Raises:
            ConnectionError: The command disconnected before the end of the file.
            ClusterError: The received data is not a chunk.
        """
        try:
            while length := chunk_length(await self._reader.readexactly(CHUNK_HEADER)):
                yield await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the file was not sent to its end") from error
        finally:
            self._complete.set()

    async def hung_up(self) -> None:
        """Wait until the command disconnects; while a file is uploaded, only `blocks` notices a disconnect."""
        await self._complete.wait()
        while await self._reader.read(1 << 16):
            continue
