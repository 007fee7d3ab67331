"""The lease of a cluster: a host that no command has reached for its duration stops its part of the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Lease:
    """Measures the time since a command was last connected to the agent.

    The lease is not in the journal: only a command can start the next agent, and that command renews the lease.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_renewal = clock()
        self._requests = 0

    @contextmanager
    def renew(self) -> Iterator[None]:
        """Renew the lease until the context is left: a request is in progress."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._last_renewal = self._clock()

    def has_expired(self, seconds: float | None) -> bool:
        """Return whether the lease has expired (the host was abandoned).

        `seconds` is the duration of the lease: how long there may be no request. None means that it never expires.
        """
        return seconds is not None and not self._requests and self._clock() - self._last_renewal >= seconds
