"""Holds the begin of a line that a member of a group has printed, so that no other's output gets into the line."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfcluster import settings

Source = tuple[str, str]  # the short name of the member's task, and the stream
_NEVER = float("inf")


class LineBuffer:
    """Passes output on (`write(stream, data, task)`) when its line is complete, or after a short time.

    A prompt or a progress bar, which have no newline, thus appear soon.
    """

    def __init__(self, write: Callable[[str, bytes, str], None]) -> None:
        self._write = write
        self._held: dict[Source, tuple[bytes, float]] = {}  # until when to hold it, on the monotonic clock

    def add(self, stream: str, data: bytes, task: str) -> None:
        """Take what has arrived on a stream of a member."""
        source = task, stream
        held, until = self._held.pop(source, (b"", _NEVER))
        data = held + data
        end = len(data) if len(data) > settings.LOG_LINE_MAX_BYTES else data.rfind(b"\n") + 1
        if end:
            self._write(stream, data[:end], task)
        if rest := data[end:]:
            # Of a bar that is drawn again and again, what came first says for how long all of it is held.
            is_new = until == _NEVER or end > 0
            self._held[source] = rest, time.monotonic() + settings.GROUP_LINE_SECONDS if is_new else until

    def seconds_left(self) -> float:
        """Return how long nothing has to be passed on; infinity if nothing is held."""
        return max(0.0, min((until for _, until in self._held.values()), default=_NEVER) - time.monotonic())

    def pass_on(self, task: str | None = None) -> None:
        """Pass on what was held for long enough, and all of a member that has exited."""
        now = time.monotonic()
        for source, (data, until) in list(self._held.items()):
            if now >= until or source[0] == task:
                del self._held[source]
                self._write(source[1], data, source[0])

    def close(self) -> None:
        """Pass on all that is held."""
        for task, _ in list(self._held):
            self.pass_on(task)
