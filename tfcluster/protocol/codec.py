"""Messages as JSON lines and files as blocks, to and from bytes, without I/O."""

from __future__ import annotations

import json
import struct
from typing import Any

from tfcluster.errors import ClusterError

Message = dict[str, Any]

#: Longest line accepted, in bytes: a topology of a thousand tasks is below 1 MiB.
LINE_LIMIT = 16 * 2**20


#: Longest block of a file that is sent, in bytes.
CHUNK_LIMIT = 2**20
_LENGTH = struct.Struct(">I")
#: The bytes of the length in front of each block.
CHUNK_HEADER = _LENGTH.size


def encode(message: Message) -> bytes:
    """One message as one line.

    Raises:
        ValueError: It has a number that is infinite or NaN, which JSON has not.
    """
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


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


def encode_chunk(data: bytes) -> bytes:
    """One block of a file; an empty one is the file's end."""
    return _LENGTH.pack(len(data)) + data


def chunk_length(header: bytes) -> int:
    """How long the block behind a header is, in bytes; 0 at the file's end.

    Raises:
        ClusterError: No block is that long.
    """
    length: int = _LENGTH.unpack(header)[0]
    if length > CHUNK_LIMIT:
        raise ClusterError(f"a block of {length} bytes arrived, the longest has {CHUNK_LIMIT}")
    return length
