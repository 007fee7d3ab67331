"""Work that an agent does as long as it lives."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable


async def run_forever(work: Callable[[], None], pause: Callable[[], Awaitable[None]]) -> None:
    """Do some work again and again, with a pause after each.

    A failure does not end it, and is logged; once, while it stays the same.
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
