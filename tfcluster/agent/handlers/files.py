"""RPC handlers of files: the code that commands send to this host, and what runs have written to $TFCLUSTER_OUTPUT."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.state.code_store import CodeStore
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.upload import Upload
from tfcluster.core.code import is_digest, is_inside
from tfcluster.errors import ClusterError
from tfcluster.paths import code_cache
from tfcluster.processes.runs.run_plan import FILES
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.code import CodeWanted, SendCodeRequest
from tfcluster.protocol.api.outputs import (
    OutputBlock,
    OutputFile,
    OutputFiles,
    OutputsReply,
    OutputsRequest,
    ReadOutputsRequest,
)
from tfcluster.protocol.codec import Message

_logger = logging.getLogger(__name__)


async def receive_code(request: SendCodeRequest, upload: Upload) -> Response[CodeWanted, Done]:
    """Get the files of a tree that this host does not have; see `SendCodeRequest`."""
    if not is_digest(request.tree) or not 0 < request.size <= settings.CODE_MANIFEST_MAX_BYTES:
        raise ClusterError("a tree of code was announced without a proper list of its files")
    store = CodeStore(code_cache())
    manifest = {request.tree: request.size}
    is_new = False
    if store.find_missing(manifest):
        yield CodeWanted((request.tree,))
        await store.receive(upload, manifest)
        is_new = True
    if missing := await _find_missing(store, request.tree):
        yield CodeWanted(tuple(missing))
        await store.receive(upload, missing)
        is_new = True
    if is_new:
        try:
            await run_in_child("tfcluster: code cache", partial(_prune, store), settings.CODE_CACHE_SECONDS)
        except OSError as error:  # the run has its code, and the next code that arrives is another occasion
            _logger.warning("the cache of code cannot be made smaller: %s", error.strerror)
    yield Reply(Done())


async def _find_missing(store: CodeStore, tree: str) -> dict[str, int]:
    """Find what the host does not have of a tree, in a child process, as the list of its files can be long."""
    try:
        result = await run_in_child("tfcluster: code check", partial(_check, store, tree), settings.CODE_CACHE_SECONDS)
    except OSError as error:
        raise ClusterError(f"no process can be started to check the code: {error.strerror}") from error
    if result is None:
        raise ClusterError("the process that was to check the code died or hangs", hint="Try again.")
    if "error" in result:
        raise ClusterError.from_json(result["error"])
    missing: dict[str, int] = result["missing"]
    return missing


def _check(store: CodeStore, tree: str) -> Message:
    try:
        return {"missing": store.find_missing_of(tree)}
    except ClusterError as error:
        return {"error": error.to_json()}


def _prune(store: CodeStore) -> Message:
    store.prune()
    return {}


async def list_files(store: RunStore, request: OutputsRequest) -> Response[OutputFiles, OutputsReply]:
    """List the files of a run; see `OutputsRequest`."""
    run, folder = _find(store, request.run)
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


async def read_files(store: RunStore, request: ReadOutputsRequest) -> Response[OutputBlock, Done]:
    """Send the contents of files; see `ReadOutputsRequest`."""
    _, folder = _find(store, request.run)
    for path in request.paths:
        if not is_inside(path):
            raise ClusterError(f"{path!r:.80} is not the path of a file that a run has written")
        for block in _read(folder / path):
            yield OutputBlock(path, base64.b64encode(block).decode())
            await asyncio.sleep(0)
    yield Reply(Done())


def _find(store: RunStore, text: str) -> tuple[str, Path]:
    """Return the id of a run, and its folder of outputs on this host."""
    run = store.find(text)
    return run, store.folder(run) / FILES


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
