"""Encode and decode messages as lines of JSON, without I/O."""

from __future__ import annotations

import json
from typing import Any

from tfcluster import settings
from tfcluster.errors import ClusterError

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Encode a message as one line of JSON.

    Raises:
        ValueError: The message contains an infinite number or NaN, which JSON does not support.
    """
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class Decoder:
    """An incremental decoder, which buffers received bytes and returns the complete messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Decode received bytes and return the messages that they complete.

        Raises:
            ClusterError: A line is not a JSON object, or is too long.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > settings.RPC_LINE_MAX_BYTES:
            raise ClusterError(f"a message longer than {settings.RPC_LINE_MAX_BYTES} bytes arrived")
        return [decode_line(line) for line in lines]


def decode_line(line: bytes) -> Message:
    """Decode one line without its newline.

    Raises:
        ClusterError: The line is not a JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"a line that is not JSON arrived: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise ClusterError(f"a message that is not an object arrived: {line[:80]!r}")
    return message
