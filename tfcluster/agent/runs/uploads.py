"""Saves the file uploaded with a run in the run's folder."""

from __future__ import annotations

import os
from pathlib import Path

from tfcluster.agent.upload import Upload
from tfcluster.errors import ClusterError


def validate_name(name: str) -> str:
    """Return the name of an uploaded file after checking that it is a plain file name and not a path.

    Raises:
        ClusterError: The name is empty, `.` or `..`, or contains a slash or a NUL character.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ClusterError(f"{name!r} is not the name of a file")
    return name


async def receive(upload: Upload, path: Path) -> None:
    """Receive an uploaded file and write it to `path`, in a folder that is created for it.

    Args:
        upload: The upload.
        path: The file to create.

    Raises:
        ClusterError: The file cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            async for block in upload.chunks():
                rest = memoryview(block)
                while rest:
                    rest = rest[file.write(rest) :]
    except OSError as error:
        raise ClusterError(f"{path}: cannot store the uploaded file: {error.strerror}") from error
