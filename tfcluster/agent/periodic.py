"""Periodic background work of the agent."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable

_logger = logging.getLogger(__name__)


async def run_forever(work: Callable[[], None], pause: Callable[[], Awaitable[None]]) -> None:
    """Run a function periodically until cancelled, with a pause after each call.

    An exception of the function is logged and does not end the loop. A failure that repeats is logged only once.

    Args:
        work: The function.
        pause: Called after each call of the function; awaited before the next call.
    """
    logged = ""
    while True:
        failure = ""
        try:
            work()
        except Exception:
            failure = traceback.format_exc()
        if failure not in ("", logged):
            _logger.error("periodic work failed: %s", failure.rstrip())
        logged = failure
        await pause()
