"""Work that an agent does as long as it lives."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable


async def for_ever(work: Callable[[], None], pause: Callable[[], Awaitable[None]]) -> None:
    """Do some work again and again, with a pause after each; a failure is logged and does not end it."""
    while True:
        try:
            work()
        except Exception:
            traceback.print_exc()
        await pause()
