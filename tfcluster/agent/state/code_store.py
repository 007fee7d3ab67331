"""The cache of the code that commands have sent to this host: contents of files under their digests."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.upload import Upload
from tfcluster.core.code import decode_manifest
from tfcluster.core.text import format_size
from tfcluster.errors import ClusterError
from tfcluster.paths import make_private_folder

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

        The cache must have the manifest of the tree. It can be long, which takes a second to decode.

        Raises:
            ClusterError: The manifest cannot be read or is damaged.
        """
        try:
            files = decode_manifest((self._folder / tree).read_bytes())
        except OSError as error:
            raise ClusterError(f"{self._folder}: cannot read the code: {error.strerror}") from error
        sizes = {file.digest: file.size for file in files if file.digest is not None}
        return {digest: sizes[digest] for digest in self.find_missing(sizes)}

    async def receive(self, upload: Upload, sizes: Mapping[str, int]) -> None:
        """Receive contents that the command sends one right after the other, and store them.

        `sizes` has the size of each content in bytes, by its digest, in the order in which the contents arrive.

        Raises:
            ClusterError: The disk has not the space, a content cannot be stored, or it is not what was announced.
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
        status = os.statvfs(self._folder)
        free = status.f_bavail * status.f_frsize
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
                    while block:
                        block = block[file.write(block) :]
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
        self._chunks = upload.chunks()
        self._rest = memoryview(b"")

    async def take(self, size: int) -> AsyncIterator[memoryview]:
        """Yield the next `size` bytes of the upload in blocks; raise a ClusterError if the upload ends before."""
        while size:
            if not self._rest:
                try:
                    self._rest = memoryview(await anext(self._chunks))
                except StopAsyncIteration:
                    raise ClusterError("the command has sent less code than it announced") from None
            block, self._rest = self._rest[:size], self._rest[size:]
            size -= len(block)
            yield block
