"""RPC handlers of files: the code that commands send to this host, and what runs have written to $TFCLUSTER_OUTPUT."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import logging
import os
import secrets
import stat
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.core.code import decode_manifest, is_digest, is_inside
from tfcluster.core.text import format_size
from tfcluster.errors import ClusterError
from tfcluster.os.files import write_all
from tfcluster.paths import code_cache, make_private_folder
from tfcluster.processes.runs.run_plan import FILES
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.files import (
    CodeWanted,
    OutputBlock,
    OutputFile,
    OutputFiles,
    OutputsReply,
    OutputsRequest,
    ReadOutputsRequest,
    SendCodeRequest,
)


class Upload:
    """The receiving side of an upload: the blocks that have arrived, until the handler of the request takes them."""

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque()
        self._size = 0  # of the blocks
        self._changed = asyncio.Event()  # a block has arrived, or has been taken
        self.is_complete = False  # whether all has arrived, so that `blocks` does not depend on the command any more

    def feed(self, block: bytes) -> None:
        """Accept a block from the connection; an empty one marks the end of the upload."""
        if self.is_complete:
            raise ClusterError("a block arrived after the end of an upload")
        self._blocks.append(block)
        self._size += len(block)
        self.is_complete = not block
        self._changed.set()

    @property
    def has_room(self) -> bool:
        """Return whether no more than `settings.RPC_UPLOAD_WAITING_BYTES` wait for the handler."""
        return self._size <= settings.RPC_UPLOAD_WAITING_BYTES

    async def wait_for_room(self) -> None:
        """Wait until the handler has taken enough of what has arrived."""
        while not self.has_room:
            await self._wait_for_change()

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield the uploaded file in blocks. The memory use does not depend on the size of the file.

        If the command disconnects, the request is cancelled, and with it the caller of this method.
        """
        while True:
            while not self._blocks:
                await self._wait_for_change()
            block = self._blocks.popleft()
            self._size -= len(block)
            self._changed.set()
            if not block:
                return
            yield block

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


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
        partial = path.with_name(_INCOMPLETE)
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", 0) as file:
            async for block in upload.blocks():
                if _free_bytes(file.fileno()) < settings.UPLOAD_MIN_FREE_BYTES:  # what has no end would fill the disk
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                write_all(file.fileno(), block)
        partial.rename(path)  # the next agent starts only a run whose file is complete
    except OSError as error:
        raise ClusterError(f"{path}: cannot store the uploaded file: {error.strerror}") from error


def _free_bytes(place: int | Path) -> int:
    """Return the free space for ordinary users on the disk of an open file or a folder."""
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


_INCOMPLETE = ".new-"


class CodeStore:
    """The cache, which all agents of this user on this host share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_missing(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the digests of the contents that the cache does not have; the others are marked as used now.

        `sizes` has the size of each content in bytes, by its digest.
        """
        missing = []
        for digest, size in sizes.items():
            try:
                os.utime(self._folder / digest)
                has_content = os.stat(self._folder / digest).st_size == size  # else the machine has crashed
            except OSError:
                has_content = False
            if not has_content:
                missing.append(digest)
        return missing

    def find_missing_of(self, tree: str) -> dict[str, int]:
        """Return the digests and sizes of the contents that a tree has and the cache does not.

        The cache must have the manifest of the tree. It can be long, which takes a second to decode. Raises
        ClusterError: the manifest cannot be read or is damaged.
        """
        try:
            files = decode_manifest((self._folder / tree).read_bytes())
        except OSError as error:
            raise ClusterError(f"{self._folder}: cannot read the code: {error.strerror}") from error
        sizes = {file.digest: file.size for file in files if file.digest is not None}
        return {digest: sizes[digest] for digest in self.find_missing(sizes)}

    async def receive(self, upload: Upload, sizes: Mapping[str, int]) -> None:
        """Receive contents that the command sends one right after the other, and store them.

        `sizes` has the size of each content in bytes, by its digest, in the order in which the contents arrive. Raises
        ClusterError: the disk has not the space, a content cannot be stored, or it is not what was announced.
        """
        try:
            make_private_folder(self._folder)
            self._check_space(sum(sizes.values()))
            blocks = _Blocks(upload)
            for digest, size in sizes.items():
                await self._store(digest, blocks.take(size))
                await asyncio.sleep(0)  # many small files arrive at once
        except OSError as error:
            raise self._error(error) from error

    def _check_space(self, size: int) -> None:
        free = _free_bytes(self._folder)
        if free < size + settings.UPLOAD_MIN_FREE_BYTES:
            raise ClusterError(
                f"{self._folder}: the code requires {format_size(size)}, and only {format_size(free)} are free there",
                hint="Make room, or leave files out: .tfclusterignore names them as .gitignore does.",
            )

    async def _store(self, digest: str, blocks: AsyncIterator[memoryview]) -> None:
        path = self._folder / f"{_INCOMPLETE}{secrets.token_hex(8)}"
        actual = hashlib.sha256()
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400), "wb", 0) as file:
                async for block in blocks:
                    actual.update(block)
                    write_all(file.fileno(), block)
                    await asyncio.sleep(0)  # one turn of the agent for each MiB
            if actual.hexdigest() != digest:
                raise ClusterError("a file arrived that differs from the one announced: it was changed in the meantime")
            os.replace(path, self._folder / digest)
        finally:
            path.unlink(missing_ok=True)

    def _error(self, error: OSError) -> ClusterError:
        hint = "Make room there." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return ClusterError(f"{self._folder}: cannot store the code: {error.strerror}", hint=hint)

    def prune(self) -> None:
        """Remove the contents that were used longest ago, until the cache is small enough; recent ones stay.

        A run that is being submitted may need the recent ones. Folders are not of this cache: where the home of a host
        cannot be written, tfcluster's own code is beside the contents.
        """
        contents = []
        now = time.time()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another agent's prune has removed it
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    contents.append((status.st_mtime, status.st_size, entry.path, entry.name.startswith(_INCOMPLETE)))
        excess = sum(size for _, size, _, _ in contents) - settings.CODE_CACHE_MAX_BYTES
        for used_at, size, path, is_incomplete in sorted(contents):
            if now - used_at < settings.CODE_CACHE_KEEP_SECONDS:
                return
            if is_incomplete or excess > 0:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                excess -= size


class _Blocks:
    """Splits an upload into the contents that it consists of."""

    def __init__(self, upload: Upload) -> None:
        self._arriving = upload.blocks()
        self._rest = memoryview(b"")

    async def take(self, size: int) -> AsyncIterator[memoryview]:
        """Yield the next `size` bytes of the upload in blocks; raise a ClusterError if the upload ends before."""
        while size:
            if not self._rest:
                try:
                    self._rest = memoryview(await anext(self._arriving))
                except StopAsyncIteration:
                    raise ClusterError("the command has sent less code than it announced") from None
            block, self._rest = self._rest[:size], self._rest[size:]
            size -= len(block)
            yield block


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
            await run_in_child("tfcluster: code cache", store.prune, settings.CODE_CACHE_SECONDS)
        except ClusterError as error:  # the run has its code, and the next code that arrives is another occasion
            _logger.warning("the cache of code cannot be made smaller: %s", error.message)
    yield Reply(Done())


async def _find_missing(store: CodeStore, tree: str) -> dict[str, int]:
    """Find what the host does not have of a tree, in a child process, as the list of its files can be long."""
    find, limit = partial(store.find_missing_of, tree), settings.CODE_CACHE_SECONDS
    missing: dict[str, int] = await run_in_child("tfcluster: code check", find, limit)
    return missing


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
