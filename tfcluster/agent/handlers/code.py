"""RPC handler of the code that commands send to this host."""

from __future__ import annotations

import logging
from functools import partial

from tfcluster import settings
from tfcluster.agent.code_store import CodeStore
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.upload import Upload
from tfcluster.core.code import is_digest
from tfcluster.errors import ClusterError
from tfcluster.paths import code_cache
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.code import CodeWanted, SendCodeRequest
from tfcluster.protocol.codec import Message

_logger = logging.getLogger(__name__)


async def receive_code(request: SendCodeRequest, upload: Upload) -> Response[CodeWanted, Done]:
    """Get the files of a tree that this host does not have; see `SendCodeRequest`."""
    if not is_digest(request.tree) or not 0 < request.size <= settings.CODE_MANIFEST_MAX_BYTES:
        raise ClusterError("a tree of code was announced without a proper list of its files")
    store = CodeStore(code_cache())
    manifest = {request.tree: request.size}
    is_new = False
    if await store.find_missing(manifest):
        yield CodeWanted((request.tree,))
        await store.receive(upload, manifest)
        is_new = True
    files = store.read_manifest(request.tree)
    sizes = {file.digest: file.size for file in files if file.digest is not None}
    if missing := await store.find_missing(sizes):
        yield CodeWanted(tuple(missing))
        await store.receive(upload, {digest: sizes[digest] for digest in missing})
        is_new = True
    if is_new:
        try:
            await run_in_child("tfcluster: code cache", partial(_prune, store), settings.CODE_PRUNE_SECONDS)
        except OSError as error:  # the run has its code, and the next code that arrives is another occasion
            _logger.warning("the cache of code cannot be made smaller: %s", error.strerror)
    yield Reply(Done())


def _prune(store: CodeStore) -> Message:
    store.prune()
    return {}
