"""Periodic background work of the agent."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable


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
            print(failure, file=sys.stderr, end="", flush=True)
        logged = failure
        await pause()
