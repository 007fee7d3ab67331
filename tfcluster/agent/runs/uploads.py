"""Takes the file that is sent with a run into the run's folder."""

from __future__ import annotations

import os
from pathlib import Path

from tfcluster.agent.request_stream import RequestStream
from tfcluster.errors import ClusterError


def validate_name(name: str) -> str:
    """The name of a file that is sent, once it is known to be no path to somewhere else.

    Raises:
        ClusterError: It is none.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ClusterError(f"{name!r} is not the name of a file")
    return name


async def receive(incoming: RequestStream, path: Path) -> None:
    """Write the file that comes to `path`, in a folder that is made for it.

    Raises:
        ConnectionError: The command went away before the file's end.
        ClusterError: It cannot be written, or what came is no file.
    """
    try:
        path.parent.mkdir(mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            async for block in incoming.blocks():
                rest = memoryview(block)
                while rest:
                    rest = rest[file.write(rest) :]
    except ConnectionError:
        raise
    except OSError as error:
        raise ClusterError(f"{path}: cannot store what was sent: {error.strerror}") from error
