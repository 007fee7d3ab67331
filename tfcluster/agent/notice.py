"""Waking whoever waits for the next change of something."""

from __future__ import annotations

import asyncio


class Notice:
    """Told of each change; wakes everybody who waits for the next one."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Something changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()
