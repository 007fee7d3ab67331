"""Change notification for asyncio: a condition with a version counter, so that no waiter misses a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class ChangeNotifier:
    """Counts changes and wakes every coroutine that waits for the next one.

    Attributes:
        count: The number of changes so far. Read it before you read the state that may change, and pass it to `since`
            afterwards: `since` then returns at once if a change happened in between (for example while the state was
            being sent over a connection).
    """

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Record a change and wake all waiters."""
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def since(self, count: int) -> None:
        """Wait until more than `count` changes have happened.

        Args:
            count: The value of the attribute `count` when the caller last read the state.
        """
        if self.count == count:
            await self._changed.wait()

    async def until(self, done: asyncio.Future[Any]) -> AsyncIterator[None]:
        """Yield now and after every change until `done` completes.

        Args:
            done: The future that ends the iteration.
        """
        while not done.done():
            seen = self.count
            yield
            changed = asyncio.ensure_future(self.since(seen))
            try:
                await asyncio.wait({done, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
