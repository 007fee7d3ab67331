"""How long a cluster goes on that no command asks after: its host may have been left behind for good."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Lease:
    """Since when no command has been in contact.

    Nothing of it is kept for the next agent: only a command starts one, and is in contact by that.

    Args:
        clock: Gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._open = 0

    @contextmanager
    def contact(self) -> Iterator[None]:
        """A command is in contact, from its request until it has hung up."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._last = self._clock()

    def is_over(self, seconds: float | None) -> bool:
        """Whether no command has been in contact for so many seconds; never, for None."""
        return seconds is not None and not self._open and self._clock() - self._last >= seconds
