"""Threads that read streams of agents for a view, and write nothing to the terminal."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from tfcluster.client.rpc.parallel import StreamContext, StreamStoppedError
from tfcluster.errors import ClusterError


class ViewContext(StreamContext):
    """The context of a stream whose view shows by itself that a host is lost or back; nothing is printed.

    `stopped` is set when the stream has no reader any more. The thread of the stream calls `report_lost` with the
    reason when the host is lost.
    """

    def __init__(self, host: str, stopped: threading.Event, report_lost: Callable[[str], None]) -> None:
        super().__init__(host, lambda text: None, stopped)
        self._report_lost = report_lost

    def on_lost(self, reason: str) -> None:
        """See `StreamContext.on_lost`."""
        self._report_lost(reason)

    def on_connected(self) -> None:
        """Do nothing: what the stream says next shows that the host is back."""


class StreamThreads:
    """Starts threads that read streams, and ends them all."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def start(
        self,
        host: str,
        body: Callable[[StreamContext], None],
        stopped: threading.Event | None = None,
        report_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Start a thread that reads a stream of a host with `body`; an error ends it.

        `stopped` ends this thread alone; without it only `stop` does. The thread calls `report_lost` with the reason
        when the host is lost.
        """

        def run() -> None:
            with contextlib.suppress(StreamStoppedError, ClusterError):
                body(ViewContext(host, stopped or self._stopped, report_lost))

        threading.Thread(target=run, daemon=True).start()

    def stop(self) -> None:
        """End all threads; they notice it in a moment, and nothing waits for them."""
        self._stopped.set()
