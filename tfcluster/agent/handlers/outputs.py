"""RPC handlers of the files that runs have written to $TFCLUSTER_OUTPUT."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.runs.store import RunStore
from tfcluster.core.code import is_inside
from tfcluster.errors import ClusterError
from tfcluster.processes.runs.run_plan import FILES
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.outputs import (
    OutputBlock,
    OutputFile,
    OutputFiles,
    OutputsReply,
    OutputsRequest,
    ReadOutputsRequest,
)


class OutputHandlers:
    """Handles the requests about the files that runs have written."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def list_files(self, request: OutputsRequest) -> Response[OutputFiles, OutputsReply]:
        """List the files of a run; see `OutputsRequest`."""
        run, folder = self._find(request.run)
        files: list[OutputFile] = []
        for file in _walk(folder):
            if file is not None:
                files.append(file)
            if file is None or len(files) == settings.CODE_FILES_PER_TURN:
                yield OutputFiles(tuple(files))
                files.clear()
                await asyncio.sleep(0)
        yield OutputFiles(tuple(files))
        yield Reply(OutputsReply(run))

    async def read_files(self, request: ReadOutputsRequest) -> Response[OutputBlock, Done]:
        """Send the contents of files; see `ReadOutputsRequest`."""
        _, folder = self._find(request.run)
        for path in request.paths:
            if not is_inside(path):
                raise ClusterError(f"{path!r:.80} is not the path of a file that a run has written")
            for block in _read(folder / path):
                yield OutputBlock(path, base64.b64encode(block).decode())
                await asyncio.sleep(0)
        yield Reply(Done())

    def _find(self, text: str) -> tuple[str, Path]:
        """Return the id of a run, and its folder of outputs on this host."""
        run = self._store.find(text)
        return run, self._store.folder(run) / FILES


def _walk(top: Path) -> Iterator[OutputFile | None]:
    """Yield the files and links in a folder, and None where the agent may do something else: a folder can be large."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        names: list[str] = []
        with contextlib.suppress(OSError), os.scandir(top / folder) as entries:  # the run has just removed it
            for entry in entries:
                names.append(entry.name)
                if len(names) % settings.CODE_FILES_PER_TURN == 0:
                    yield None
        below = []
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                status = os.lstat(top / path)
                link = os.readlink(top / path) if stat.S_ISLNK(status.st_mode) else None
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                below.append(path)
            elif link is not None or stat.S_ISREG(status.st_mode):
                is_executable = bool(status.st_mode & stat.S_IXUSR)
                yield OutputFile(path, status.st_size, status.st_mtime_ns, is_executable, link)
        waiting += reversed(below)


def _read(path: Path) -> Iterator[bytes]:
    """Yield the content of a file as it is now, then an empty block; nothing if there is no such file any more."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", 0) as file:
            rest = os.fstat(file.fileno()).st_size
            while rest > 0 and (block := file.read(min(rest, settings.OUTPUT_BLOCK_BYTES))):
                rest -= len(block)
                yield block
            yield b""
    except FileNotFoundError:
        return
    except OSError as error:
        raise ClusterError(f"{path}: cannot be read: {error.strerror}") from error
