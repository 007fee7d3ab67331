"""The file that a command uploads with a run: flow control, and its place in the run's folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from tfcluster import settings
from tfcluster.errors import ClusterError


class Upload:
    """The receiving side of an upload.

    The command sends nothing before the first chunk is awaited, and at most `settings.RPC_UPLOAD_WINDOW_BYTES` more
    than has been read. `grant` allows it to send a number of further bytes.
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
        """Accept a chunk from the connection; an empty chunk marks the end of the upload."""
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


def validate_filename(name: str) -> str:
    """Return the name of an uploaded file after checking that it is a plain file name and not a path.

    Raises ClusterError if the name is empty, `.` or `..`, or contains a slash or a NUL character.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ClusterError(f"{name!r} is not the name of a file")
    return name


async def receive(upload: Upload, path: Path) -> None:
    """Receive an uploaded file and write it to `path`, in a folder that is created for it."""
    try:
        path.parent.mkdir(mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            async for block in upload.chunks():
                if _free_bytes(fd) < settings.UPLOAD_MIN_FREE_BYTES:  # what has no end would fill the disk
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = memoryview(block)
                while rest:
                    rest = rest[file.write(rest) :]
    except OSError as error:
        raise ClusterError(f"{path}: cannot store the uploaded file: {error.strerror}") from error


def _free_bytes(fd: int) -> int:
    """Return the free space for ordinary users on the disk of an open file."""
    status = os.fstatvfs(fd)
    return status.f_bavail * status.f_frsize
