"""Waiting with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def wait_for(awaitable: Awaitable[T], timeout: float | None) -> T:
    """Wait for an awaitable as `asyncio.wait_for` does, and also end if cancelled at the moment when it is done.

    Before Python 3.12, asyncio.wait_for then returned, and the cancellation was lost: a handler whose request the
    command had cancelled continued, and the connection's next requests waited until it ended.

    The timeout is in seconds. After it the awaitable is cancelled, and asyncio.TimeoutError is raised.
    """
    future = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({future}, timeout=timeout)
    except asyncio.CancelledError:
        if not future.cancel() and not future.cancelled():
            future.exception()  # asyncio would log that it was never retrieved
        raise
    if not done:
        future.cancel()
        raise asyncio.TimeoutError
    return future.result()
