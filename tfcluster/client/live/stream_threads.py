"""Threads that read streams of agents for a view, and write nothing to the terminal."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from tfcluster.client.rpc.parallel import StreamContext, StreamStoppedError
from tfcluster.errors import ClusterError


def ignore(text: str) -> None:
    """Ignore a message: the view shows by itself that a host is away."""


class StreamThreads:
    """Starts threads that read streams, and ends them all."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def start(
        self,
        host: str,
        body: Callable[[StreamContext], None],
        note: Callable[[str], None] = ignore,
        stopped: threading.Event | None = None,
    ) -> None:
        """Start a thread; an error ends it.

        Args:
            host: The host of the stream.
            body: Reads the stream.
            note: Called from the thread when the host is lost, and when it is back.
            stopped: What ends this thread alone; None if only `stop` does.
        """

        def run() -> None:
            with contextlib.suppress(StreamStoppedError, ClusterError):
                body(StreamContext(host, note, stopped or self._stopped))

        threading.Thread(target=run, daemon=True).start()

    def stop(self) -> None:
        """End all threads; they notice it in a moment, and nothing waits for them."""
        self._stopped.set()
