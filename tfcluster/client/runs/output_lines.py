"""Lines of a script's output, from the parts in which it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfcluster import settings

Event = dict[str, Any]


class OutputLines:
    """Makes an event for each line of output from events for parts of it."""

    def __init__(self) -> None:
        self._rest: dict[tuple[str, str], bytes] = {}

    def convert(self, event: Event) -> Iterator[Event]:
        """Yield an event as it is, or of one of output those of the lines that it completes.

        The result, and a line about output that is missing, are preceded by lines that have no end. A line that is too
        long comes in pieces.
        """
        is_missing = "missing" in event  # its data is a line that says so
        if event["event"] == "output" and not is_missing:
            yield from self._complete((event["stream"], event.get("task", "")), encode(event))
            return
        if event["event"] == "result" or is_missing:
            for source in list(self._rest):
                yield from self._complete(source, b"\n")
        if is_missing:
            event = {**event, "line": event["data"].rstrip("\n")}
            del event["data"]
        yield event

    def _complete(self, source: tuple[str, str], data: bytes) -> Iterator[Event]:
        *lines, rest = (self._rest.pop(source, b"") + data).split(b"\n")
        limit = settings.RUN_OUTPUT_LINE_MAX_BYTES
        for line in lines:
            for start in range(0, max(1, len(line)), limit):
                yield _line(source, line[start : start + limit])
        while len(rest) > limit:
            yield _line(source, rest[:limit])
            rest = rest[limit:]
        if rest:
            self._rest[source] = rest


def encode(event: Event) -> bytes:
    """Return the bytes of an event of output, as the script wrote them."""
    data: str = event["data"]
    return data.encode(errors="surrogateescape")


def _line(source: tuple[str, str], line: bytes) -> Event:
    stream, task = source
    member = {"task": task} if task else {}
    return {"event": "output", **member, "stream": stream, "line": line.decode(errors="replace")}
