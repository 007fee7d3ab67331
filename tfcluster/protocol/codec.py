"""Encode and decode lines of JSON, and the messages of a connection between a command and an agent, without I/O.

A line is one message; pipes between processes and files of events consist of lines.

A connection carries one request. Each side first sends one line, its greeting, by which the version is negotiated; the
command may go on before it has received the agent's. Its second line is the request, `{"method", "arguments"}`. An
upload follows in blocks, each after a line `{"block": SIZE}`; the size 0 marks its end. The agent sends a line
`{"event"}` for each event of the response, and at last `{"reply", "ends"}` or `{"error", "ends"}`. If the command shuts
down its side before that, the agent stops working on the request.
"""

from __future__ import annotations

import json
from typing import Any

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.records import record_class
from tfcluster.version import PROTOCOL, __version__

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Encode a message as one line of JSON; infinities and NaN, which JSON lacks, raise a ValueError."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class Decoder:
    """An incremental decoder, which buffers received bytes and returns the complete messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Decode received bytes and return the messages that they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > settings.RPC_LINE_MAX_BYTES:
            raise ClusterError(f"a message longer than {settings.RPC_LINE_MAX_BYTES} bytes arrived")
        return [decode_line(line) for line in lines]


def decode_line(line: bytes) -> Message:
    """Decode one line without its newline."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"a line that is not JSON arrived: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise ClusterError(f"a message that is not an object arrived: {line[:80]!r}")
    return message


def encode_block(data: bytes) -> bytes:
    """Encode a block of an upload, of at most `settings.RPC_BLOCK_MAX_BYTES` bytes; an empty one marks its end."""
    return encode({"block": len(data)}) + data


def encode_greeting() -> bytes:
    """Encode the first line that each side sends, the agent after the command."""
    return encode({"version": PROTOCOL, "tfcluster": __version__})


def encode_rejection(error: ClusterError) -> bytes:
    """Encode the last line of an agent that closes the connection because of an error of the command.

    If the versions differ, it is the first line.
    """
    return encode({"error": error.to_json(), "version": PROTOCOL, "tfcluster": __version__})


@record_class(frozen=True)
class Greeting:
    """The contents of the first line of a command or an agent."""

    version: int
    release: str

    @property
    def is_older(self) -> bool:
        """Return whether the sender speaks an older version of the protocol than this process."""
        return self.version < PROTOCOL

    def __str__(self) -> str:
        return f"{self.release} (protocol {self.version})"


OWN_GREETING = Greeting(PROTOCOL, __version__)


def parse_greeting(line: bytes) -> Greeting:
    """Parse the first line of the other side, including one that speaks another version of the protocol."""
    return _greeting_of(decode_line(line))


def _greeting_of(message: Message) -> Greeting:
    version = message.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ClusterError("a line that is not a greeting arrived")
    release = message.get("tfcluster")
    shown = f"{release:.{settings.UNEXPECTED_DATA_CHARACTERS}}" if isinstance(release, str) else "?"
    return Greeting(version, shown)


def parse_writer(line: bytes) -> Greeting:
    """Return the writer of a journal by the journal's first line; raises ValueError if it is no such line."""
    document = json.loads(line)
    if not isinstance(document, dict) or "topology" not in document:
        raise ValueError("not a journal")
    release, version = document.get("tfcluster"), document.get("protocol")
    if not isinstance(version, int):
        raise ValueError("protocol: not a number")
    return Greeting(version, str(release))


class MessageDecoder:
    """An incremental decoder of one direction of a connection: the greeting, then messages, and blocks of an upload.

    After a ClusterError, the connection cannot be used any more: the other side uses another version of the protocol,
    or the bytes are not messages.
    """

    def __init__(self, *, is_agent: bool) -> None:
        self._is_agent = is_agent  # whether the receiver is the agent
        self._buffer = bytearray()
        self._searched = 0  # up to here the buffer contains no newline
        self.has_greeting = False  # whether the greeting has arrived

    def feed(self, data: bytes) -> None:
        """Accept received bytes."""
        self._buffer += data

    def take_message(self) -> Message | None:
        """Return the next message; None if it has not arrived."""
        while (line := self._take_line()) is not None:
            message = self._decode(line)
            if self.has_greeting:
                return message
            self._check_greeting(message)
        return None

    def take_block(self) -> bytes | None:
        """Return the next block of an upload; None if it has not arrived."""
        end = self._buffer.find(b"\n") + 1
        if (end or len(self._buffer)) > settings.RPC_BLOCK_LINE_BYTES:
            raise ClusterError("a line that is not a block arrived")
        if end == 0:
            return None
        size = self._decode(bytes(self._buffer[: end - 1])).get("block")
        if type(size) is not int or not 0 <= size <= settings.RPC_BLOCK_MAX_BYTES:
            raise ClusterError(f"a block of the size {size!r:.{settings.UNEXPECTED_DATA_CHARACTERS}} arrived")
        if len(self._buffer) < end + size:
            return None
        data = bytes(self._buffer[end : end + size])
        del self._buffer[: end + size]
        self._searched = 0
        return data

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._searched)
        self._searched = len(self._buffer)
        limit = settings.RPC_REQUEST_MAX_BYTES if self._is_agent else settings.RPC_LINE_MAX_BYTES
        if (end if end >= 0 else len(self._buffer)) > limit:
            raise ClusterError(f"a message longer than {limit} bytes arrived")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def _decode(self, line: bytes) -> Message:
        try:
            return decode_line(line)
        except ClusterError:  # it shows a part of the line, and requests contain secrets
            raise ClusterError("a line that is not a message arrived") from None

    def _check_greeting(self, message: Message) -> None:
        if "error" in message and not self._is_agent:
            raise _parse_rejection(message["error"])
        greeting = _greeting_of(message)
        if greeting.version != PROTOCOL:
            raise version_error(greeting, is_agent=self._is_agent)
        self.has_greeting = True


def _parse_rejection(error: Any) -> ClusterError:
    try:
        return ClusterError.from_json(error)
    except (KeyError, TypeError, ValueError):
        return ClusterError("the agent refused the connection")


def version_error(other: Greeting, *, is_agent: bool) -> ClusterError:
    """Return the error of a version mismatch, about which only the other side's greeting is known."""
    own, its = f"tfcluster {OWN_GREETING}", f"tfcluster {other}"
    if is_agent is other.is_older:  # the command is the older one
        newest = __version__ if is_agent else other.release
        hint = f"Install tfcluster {newest} or newer for this command. The cluster's tasks and runs continue."
    else:
        hint = "`tfcluster up` with the spec replaces the agent. The cluster's tasks and runs continue."
    agent, command = (own, its) if is_agent else (its, own)
    return ClusterError(f"the cluster's agent is {agent}, and this command is {command}", hint=hint)
