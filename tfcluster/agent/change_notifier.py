"""Waking whoever waits for a change of something, without losing one that comes before the waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class ChangeNotifier:
    """Told of each change; wakes everybody who waits for the next one.

    Attributes:
        count: How many changes there were. Whoever looks at what may change takes the count before, and then waits
            for a change since: one that came meanwhile (while the look was being sent somewhere) does not wait.
    """

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Something changed."""
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def since(self, count: int) -> None:
        """Wait for a change after the first `count`."""
        if self.count == count:
            await self._changed.wait()

    async def until(self, done: asyncio.Future[Any]) -> AsyncIterator[None]:
        """Give a turn to look at once and after each change, until something is done."""
        while not done.done():
            seen = self.count
            yield
            changed = asyncio.ensure_future(self.since(seen))
            try:
                await asyncio.wait({done, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
