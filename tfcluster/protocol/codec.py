"""Encode and decode lines of JSON, and the frames of a connection between a command and an agent, without I/O.

A line is one message; pipes between processes and files of events consist of lines.

A connection carries any number of requests at the same time. Each side first sends one line, its greeting, by which the
version is negotiated; frames follow. A frame is one line of JSON, `{"id", "kind", "body"}`, where `id` is the number
that the command chose for the request. A frame of the kind `chunk` is followed by as many bytes as its body says. The
command may send frames before it has received the agent's greeting.

Flow control: each side sends only within the window that the other one has granted for this request, the command the
bytes of an upload, the agent its events. So neither what is uploaded nor a response piles up if it is not read, and it
blocks no other request. The window of an upload is 0 at first, that of events `settings.RPC_EVENT_WINDOW_BYTES`; their
whole frames are counted. An event is sent if any of the window is left, and the end of a response needs no window.
"""

from __future__ import annotations

import json
from dataclasses import field
from enum import StrEnum
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


class FrameKind(StrEnum):
    """What a frame contains."""

    # From the command:
    REQUEST = "request"  # body: {"method", "arguments"}
    CANCEL = "cancel"  # the command no longer reads the response; the agent stops working on the request
    CHUNK = "chunk"  # body: the number of bytes of an upload that follow; 0 marks the end of the upload
    # From both:
    WINDOW = "window"  # body: how many more bytes the other side may send, of the upload or of events
    # From the agent:
    EVENT = "event"  # body: an event of the response
    REPLY = "reply"  # body: {"value", "ends"}; the end of the response
    ERROR = "error"  # body: {"value", "ends"}, where the value is a ClusterError; the end of the response


@record_class(frozen=True)
class Frame:
    """One frame of a connection."""

    id: int  # the number of the request
    kind: FrameKind
    body: Any = None  # JSON values
    data: bytes = b""  # the bytes of a chunk
    size: int = field(default=0, compare=False)  # in bytes, without those of a chunk, if the frame has been received


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame."""
    return encode({"id": frame.id, "kind": frame.kind.value, "body": frame.body}) + frame.data


def encode_chunk(request: int, data: bytes) -> bytes:
    """Encode a part of an upload, of at most `settings.RPC_CHUNK_MAX_BYTES` bytes; an empty part marks its end."""
    return encode_frame(Frame(request, FrameKind.CHUNK, len(data), data))


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


class FrameDecoder:
    """An incremental decoder of one direction of a connection: the greeting, then frames."""

    def __init__(self, *, is_agent: bool) -> None:
        self._is_agent = is_agent  # whether the receiver is the agent
        self._buffer = bytearray()
        self._searched = 0  # up to here the buffer contains no newline
        self.has_greeting = False  # whether the greeting has arrived
        self._chunk: Frame | None = None  # the chunk whose bytes are arriving

    def feed(self, data: bytes) -> list[Frame]:
        """Decode received bytes and return the frames that they complete.

        After a ClusterError, the connection cannot be used any more: the other side uses another version of the
        protocol, or the bytes are not frames.
        """
        self._buffer += data
        frames: list[Frame] = []
        while True:
            if self._chunk is not None:
                frame = self._take_chunk(self._chunk)
            else:
                line = self._take_line()
                if line is None:
                    return frames
                if not self.has_greeting:
                    self._check_greeting(self._decode(line))
                    continue
                frame = self._frame(line)
            if frame is None:
                return frames
            if frame.kind is FrameKind.CHUNK and len(frame.data) < frame.body:
                self._chunk = frame
            else:
                frames.append(frame)

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

    def _take_chunk(self, chunk: Frame) -> Frame | None:
        if len(self._buffer) < chunk.body:
            return None
        data = bytes(self._buffer[: chunk.body])
        del self._buffer[: chunk.body]
        self._searched = 0
        self._chunk = None
        return Frame(chunk.id, chunk.kind, chunk.body, data)

    def _decode(self, line: bytes) -> Message:
        try:
            message = decode_line(line)
        except ClusterError:  # it shows a part of the line, and requests contain secrets
            raise ClusterError("a line that is not a frame arrived") from None
        if "error" in message and not self._is_agent:
            raise _parse_rejection(message["error"])
        return message

    def _check_greeting(self, message: Message) -> None:
        greeting = _greeting_of(message)
        if greeting.version != PROTOCOL:
            raise version_error(greeting, is_agent=self._is_agent)
        self.has_greeting = True

    def _frame(self, line: bytes) -> Frame:
        message = self._decode(line)
        number, kind, body = message.get("id"), message.get("kind"), message.get("body")
        if not isinstance(number, int) or isinstance(number, bool) or message.keys() != {"id", "kind", "body"}:
            raise ClusterError("a line that is not a frame arrived")
        if not isinstance(kind, str) or kind not in _KINDS[self._is_agent]:
            raise ClusterError(f"a frame of an unknown kind arrived: {kind!r:.{settings.UNEXPECTED_DATA_CHARACTERS}}")
        if kind in (FrameKind.CHUNK.value, FrameKind.WINDOW.value) and not _is_length(body, kind, self._is_agent):
            raise ClusterError(f"a {kind} with the length {body!r:.{settings.UNEXPECTED_DATA_CHARACTERS}} arrived")
        return Frame(number, FrameKind(kind), body, size=len(line) + 1)


_FROM_COMMAND = frozenset({FrameKind.REQUEST.value, FrameKind.CANCEL.value, FrameKind.CHUNK.value})
# The kinds of frame that a side may receive, by whether it is the agent.
_KINDS = {
    True: _FROM_COMMAND | {FrameKind.WINDOW.value},
    False: frozenset({kind.value for kind in FrameKind}) - _FROM_COMMAND,
}


def _is_length(body: Any, kind: str, is_agent: bool) -> bool:
    is_integer = isinstance(body, int) and not isinstance(body, bool)
    if kind == FrameKind.CHUNK.value:
        limit = settings.RPC_CHUNK_MAX_BYTES
    else:  # an event may be larger than the rest of its window
        events = settings.RPC_EVENT_WINDOW_BYTES + settings.RPC_LINE_MAX_BYTES
        limit = events if is_agent else settings.RPC_UPLOAD_WINDOW_BYTES
    return is_integer and 0 <= body <= limit


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
