"""The wire format: encode and decode messages as JSON lines and file uploads as length-prefixed chunks, without I/O."""

from __future__ import annotations

import json
import struct
from typing import Any

from tfcluster import settings
from tfcluster.errors import ClusterError

Message = dict[str, Any]


_LENGTH = struct.Struct(">I")
#: The size of the length prefix of each chunk, in bytes.
CHUNK_HEADER = _LENGTH.size


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
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"a line that is not JSON arrived: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise ClusterError(f"a message that is not an object arrived: {line[:80]!r}")
    return message


def encode_chunk(data: bytes) -> bytes:
    """Encode one chunk of a file with its length prefix; an empty chunk marks the end of the file."""
    return _LENGTH.pack(len(data)) + data


def chunk_length(header: bytes) -> int:
    """Return the length in bytes of the chunk that follows a header; 0 marks the end of the file.

    Raises:
        ClusterError: The length exceeds `CHUNK_LIMIT`.
    """
    length: int = _LENGTH.unpack(header)[0]
    if length > settings.RPC_CHUNK_MAX_BYTES:
        raise ClusterError(f"a block of {length} bytes arrived, the longest has {settings.RPC_CHUNK_MAX_BYTES}")
    return length
