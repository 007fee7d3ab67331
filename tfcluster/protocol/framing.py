"""Messages as JSON lines, to and from bytes, without I/O."""

from __future__ import annotations

import json
from typing import Any

from tfcluster.errors import ClusterError

Message = dict[str, Any]

#: Longest line accepted, in bytes: a layout of a thousand tasks is below 1 MiB.
LINE_LIMIT = 16 * 2**20


def encode(message: Message) -> bytes:
    """One message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Decoder:
    """Collects bytes as they arrive and gives back the complete messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes.

        Raises:
            ClusterError: What arrived is not a JSON object on a line, or the line is too long.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > LINE_LIMIT:
            raise ClusterError(f"a message longer than {LINE_LIMIT} bytes arrived")
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"a line that is not JSON arrived: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise ClusterError(f"a message that is not an object arrived: {line[:80]!r}")
    return message
