"""The call that tries whether other hosts' ports can be reached from this one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial

from tfcluster.agent import subprocesses
from tfcluster.errors import ClusterError
from tfcluster.processes.connect_check import dial
from tfcluster.protocol.api import reply
from tfcluster.protocol.codec import Message

#: What the process that dials may take beyond the time of what it dials: its start, on a busy host.
_MARGIN = 10.0


async def reach(addresses: list[str], timeout: float) -> AsyncIterator[Message]:
    """Connect to each address, all at once, and tell to which that failed.

    Args:
        addresses: Each `host:port`.
        timeout: Seconds that each has.
    """
    told: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def tell(message: Message) -> None:
        if not told.done():
            told.set_result(message)

    body = partial(dial, "tfcluster: dialling", os.getpid(), addresses, timeout)
    child = subprocesses.fork_child(body, lambda status: None)
    child.on_message(tell, lambda: tell({}))
    try:
        answer = await asyncio.wait_for(told, timeout + _MARGIN)
    except asyncio.TimeoutError:
        answer = {}
    finally:
        child.kill()
    if not answer:
        raise ClusterError("the process that was to dial the other hosts died or hangs", hint="Try again.")
    yield reply(answer)
