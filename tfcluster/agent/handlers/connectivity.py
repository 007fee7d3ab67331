"""RPC handler of the connectivity check: connect from this host to the ports of other hosts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial

from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.errors import ClusterError
from tfcluster.processes.connect_check import check_connections
from tfcluster.protocol.api import reply
from tfcluster.protocol.codec import Message


async def reach(addresses: list[str], timeout: float) -> AsyncIterator[Message]:
    """Connect to all addresses concurrently.

    Args:
        addresses: The addresses, each `host:port`.
        timeout: Seconds that each connection may take.

    Yields:
        A reply with the error for each address to which the connection failed.

    Raises:
        ClusterError: The process that connects died or hangs.
    """
    told: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def tell(message: Message) -> None:
        if not told.done():
            told.set_result(message)

    body = partial(check_connections, "tfcluster: connection check", os.getpid(), addresses, timeout)
    child = subprocesses.fork_child(body, lambda status: None)
    child.on_message(tell, lambda: tell({}))
    try:
        answer = await asyncio.wait_for(told, timeout + settings.CONNECTIVITY_MARGIN_SECONDS)
    except asyncio.TimeoutError:
        answer = {}
    finally:
        child.kill()
    if not answer:
        raise ClusterError("the process that was to dial the other hosts died or hangs", hint="Try again.")
    yield reply(answer)
