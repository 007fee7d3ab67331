"""The cluster's lease: it expires if no command contacts the agent for long enough (an abandoned host)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Lease:
    """Measures the time since a command was last in contact with the agent.

    The lease is not in the journal: only a command can start the next agent, and that command renews the lease.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._open = 0

    @contextmanager
    def contact(self) -> Iterator[None]:
        """Count a command as being in contact, from its request until it disconnects."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._last = self._clock()

    def is_over(self, seconds: float | None) -> bool:
        """Return whether the lease has expired.

        Args:
            seconds: The duration of the lease: how long no command may be in contact. None means that it never expires.
        """
        return seconds is not None and not self._open and self._clock() - self._last >= seconds
