"""Long work on the agent's event loop, in slices."""

from __future__ import annotations

import asyncio
import time

from tfcluster import settings


class Turn:
    """Gives the agent's other work its turn while a coroutine works for long, which calls `pause` after each step."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + settings.TURN_SECONDS

    async def pause(self) -> None:
        """Let other coroutines run if this one has had its turn."""
        if time.monotonic() >= self._ends:
            await asyncio.sleep(0)
            self._ends = time.monotonic() + settings.TURN_SECONDS
