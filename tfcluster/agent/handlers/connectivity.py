"""RPC handler of the connectivity check: connect from this host to the ports of other hosts."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.errors import ClusterError
from tfcluster.processes.probes import check_connections
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.cluster import ReachReply, ReachRequest
from tfcluster.protocol.codec import Message


async def reach(request: ReachRequest) -> Response[NoReturn, ReachReply]:
    """Connect to all addresses concurrently; see `ReachRequest`.

    Raises:
        ClusterError: The process that connects died or hangs.
    """
    first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def receive(message: Message) -> None:
        if not first.done():
            first.set_result(message)

    body = partial(
        check_connections, "tfcluster: connection check", os.getpid(), list(request.addresses), request.timeout
    )
    child = subprocesses.fork_child(body, lambda status: None)
    child.on_message(receive, lambda: receive({}))
    try:
        result = await asyncio.wait_for(first, request.timeout + settings.CONNECTIVITY_MARGIN_SECONDS)
    except asyncio.TimeoutError:
        result = {}
    finally:
        child.kill()
    if not result:
        raise ClusterError("the process that was to dial the other hosts died or hangs", hint="Try again.")
    yield Reply(ReachReply(result["failures"]))
