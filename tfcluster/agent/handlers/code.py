"""RPC handler of the code that commands send to this host."""

from __future__ import annotations

import logging
from functools import partial

from tfcluster import settings
from tfcluster.agent.state.code_store import CodeStore
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
