"""The upload of a request: what the command sends after the request, with flow control."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from tfcluster import settings
from tfcluster.errors import ClusterError


class Upload:
    """The receiving side of an upload.

    The command sends nothing before the first chunk is awaited, and at most `settings.RPC_UPLOAD_WINDOW_BYTES` more
    than has been read.

    Args:
        grant: Allows the command to send a number of further bytes.
    """

    def __init__(self, grant: Callable[[int], Awaitable[None]]) -> None:
        self._grant = grant
        self._chunks: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._granted = 0  # the bytes that may still arrive
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """Return whether the whole file has arrived, so that `chunks` does not depend on the command any more."""
        return self._is_complete

    def feed(self, data: bytes) -> None:
        """Accept a chunk from the connection; an empty chunk marks the end of the upload.

        Raises:
            ClusterError: The command has sent more than it was allowed to.
        """
        if len(data) > self._granted:
            raise ClusterError(f"an upload arrived that exceeds its window by {len(data) - self._granted} bytes")
        self._granted -= len(data)
        self._is_complete = not data
        self._chunks.append(data)
        self._arrived.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the uploaded file in chunks. The memory use does not depend on the size of the file.

        If the command disconnects, the request is cancelled, and with it the caller of this method.
        """
        await self._allow(settings.RPC_UPLOAD_WINDOW_BYTES)
        while True:
            while not self._chunks:
                self._arrived.clear()
                await self._arrived.wait()
            chunk = self._chunks.popleft()
            if not chunk:
                return
            yield chunk
            await self._allow(len(chunk))

    async def _allow(self, size: int) -> None:
        if not self._is_complete:
            self._granted += size
            with contextlib.suppress(ConnectionError):  # the request is about to be cancelled
                await self._grant(size)
