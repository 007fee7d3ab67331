"""The RPC client of an agent: one connection carries the requests of all threads of a command."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Protocol, TypeVar, cast

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Request, decode_response, encode_request
from tfcluster.protocol.codec import Frame, FrameDecoder, FrameKind, encode_chunk, encode_frame
from tfcluster.transport.channel import Channel, readable_fds
from tfcluster.transport.errors import HostUnreachableError

if TYPE_CHECKING:
    from tfcluster.transport.remote_transport import HostTransport

_NO_REQUEST = 0


class AgentConnection:
    """Sends requests to an agent and distributes the frames of their responses.

    Of the threads that wait for a frame, one receives and passes the frames of the others on to them, so no thread of
    its own is needed. A frame is passed on even if the thread that waits for it has been abandoned.

    The greeting must have been sent over the channel before.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._decoder = FrameDecoder(is_agent=False)
        self._ids = itertools.count(1)
        self._sending = threading.Lock()
        self._arrived: dict[int, deque[Frame]] = {}
        self._read: dict[int, int] = {}  # the bytes of events that were read since the agent was told so
        self._changed = threading.Condition()
        self._is_receiving = False
        self._is_closed = False
        self._error: ClusterError | None = None
        weakref.finalize(self, channel.close)

    @property
    def is_usable(self) -> bool:
        """Return whether the agent is connected, as far as has been noticed; this does not wait."""
        while not self._is_closed and not self._is_receiving and self.channel.wait_readable(0.0):
            self.wait(_NO_REQUEST, 0.0)
        return not self._is_closed

    def request(self, body: Any) -> int:
        """Send a request and return its number."""
        number = next(self._ids)
        self._arrived[number], self._read[number] = deque(), 0
        with self._sending:
            # If the agent has disconnected, what it sent before shows why; `take` raises that.
            self.channel.send(encode_frame(Frame(number, FrameKind.REQUEST, body)))
        return number

    def send_chunk(self, number: int, data: bytes) -> None:
        """Send a part of the upload of a request, within its window."""
        with self._sending:
            self.channel.send(encode_chunk(number, data))

    def cancel(self, number: int) -> None:
        """Cancel a request, unless its response has ended; no more of its frames are passed on."""
        with self._changed:
            self._read.pop(number, None)
            if self._arrived.pop(number, None) is None or self._is_closed:
                return
        with self._sending:
            self.channel.send(encode_frame(Frame(number, FrameKind.CANCEL)))

    def end(self, number: int) -> None:
        """Forget a request whose response has ended."""
        with self._changed:
            self._arrived.pop(number, None)
            self._read.pop(number, None)

    def take(self, number: int) -> Frame | None:
        """Return the next frame of a response; None if none has arrived or none will arrive any more.

        Raises:
            ClusterError: The agent refused the connection, or what it sent cannot be understood.
        """
        with self._changed:
            frames = self._arrived.get(number)
            if not frames and self._error is not None:
                raise self._error
            if not frames:
                return None
            frame = frames.popleft()
            self._read[number] += frame.size if frame.kind is FrameKind.EVENT else 0
            if self._read[number] <= settings.RPC_EVENT_WINDOW_BYTES // 2 or self._is_closed:
                return frame
            read, self._read[number] = self._read[number], 0
        with self._sending:
            self.channel.send(encode_frame(Frame(number, FrameKind.WINDOW, read)))
        return frame

    def peek(self, number: int) -> Frame | None:
        """Return the next frame of a response without taking it, or None as for `take`."""
        with self._changed:
            frames = self._arrived.get(number)
            return frames[0] if frames else None

    def wait(self, number: int, seconds: float | None, *fds: int) -> bool:
        """Wait until a frame of a response has arrived or the connection is closed, or until a descriptor is readable.

        Return whether a frame has arrived or the connection is closed.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        is_last_turn = False
        while True:
            with self._changed:
                if self._arrived.get(number) or self._is_closed:
                    return True
                if is_last_turn:
                    return False
                remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
                is_last_turn = remaining == 0.0
                if self._is_receiving:
                    if fds:
                        remaining = (
                            settings.THREAD_POLL_SECONDS
                            if remaining is None
                            else min(remaining, settings.THREAD_POLL_SECONDS)
                        )
                    self._changed.wait(remaining)
                    is_last_turn = is_last_turn or bool(readable_fds(fds, 0))
                    continue
                self._is_receiving = True
            try:
                if self.channel.wait_readable(remaining, *fds):
                    self._receive()
                elif fds:
                    is_last_turn = True
            except (OSError, ValueError):
                if not self._is_closed:  # otherwise another thread has closed it
                    raise
            finally:
                with self._changed:
                    self._is_receiving = False
                    self._changed.notify_all()

    def _receive(self) -> None:
        """Receive what has arrived and pass it on."""
        try:
            data = self.channel.receive(None)
            frames = self._decoder.feed(data)
        except ClusterError as error:
            self._error, data, frames = error, b"", []
        except BaseException:  # a signal: a part of the data may be lost
            self.close()
            raise
        with self._changed:
            for frame in frames:
                if frame.id in self._arrived:  # otherwise the request was cancelled
                    self._arrived[frame.id].append(frame)
            if not data:
                self._is_closed = True
        if not data:
            self.channel.close()

    def close(self) -> None:
        """Close the connection; the agent cancels all its requests."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.channel.close()


E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")


class AgentDisconnectedError(ClusterError):
    """The agent disconnected before its response ended."""


def repeat_once(query: Callable[[], T]) -> T:
    """Call a query, and again if the agent disconnects: another command may have replaced it, or it has died."""
    with contextlib.suppress(AgentDisconnectedError):
        return query()
    return query()


class Interrupt(Protocol):
    """Something that a wait for an agent must not delay, such as the reaction to a signal."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to handle."""

    def handle(self) -> None:
        """Handle it; what this raises ends the wait."""


class AgentClient:
    """An RPC client for a cluster's agent on one host. All requests of a command share one connection.

    If the agent has disconnected, the next request goes to the agent that is running at that time. With `upgrade`, each
    request replaces an agent of an older version, as those do that change the cluster.
    """

    def __init__(self, transport: HostTransport, *, upgrade: bool = False) -> None:
        self.transport = transport
        self._upgrade = upgrade
        self._connection: AgentConnection | None = None
        self._connecting = threading.Lock()

    def call(self, request: Request[E, R], *, start: bool = False, timeout: float | None = None) -> R:
        """Send a request and return its reply, ignoring its events.

        If the agent disconnects, a request that changes nothing is sent once more, to the agent that follows.

        Args:
            start: Start an agent if there is none, even if the cluster is not up, and wait for its exit afterwards.
            timeout: The seconds to wait for the first frame of the response; None for the default.

        Raises:
            ClusterError: The agent replied with an error, or disconnected.
        """

        def send() -> R:
            response = self.stream(request, start=start, timeout=timeout)
            try:
                return response.result()
            finally:
                if start:
                    response.close_and_reap()

        return send() if request.changes else repeat_once(send)

    def stream(
        self,
        request: Request[E, R],
        *,
        start: bool = False,
        dry: bool = False,
        interrupt: Interrupt | None = None,
        timeout: float | None = None,
    ) -> ResponseStream[E, R]:
        """Send a request and return the stream of its response.

        Args:
            start: Start an agent if there is none, even if the cluster is not up.
            dry: Neither replace an agent, nor start one that would find something of the cluster.
            interrupt: What the waits for the response must not delay.
            timeout: The seconds to wait for the first frame of the response; None for the default.

        Raises:
            ClusterError: There is no agent, or none could be started.
        """
        with self._connecting:
            connection = self._connection
            if connection is None or not connection.is_usable:
                upgrade = (self._upgrade or request.changes) and not dry
                channel = self.transport.open(start=start, upgrade=upgrade, dry=dry)
                connection = self._connection = AgentConnection(channel)
        return ResponseStream(self.transport, connection, request, interrupt, timeout)

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()


class ResponseStream(Generic[E, R]):
    """The response to one request: an iterator over its events, then its reply.

    This is not a generator, because an exception such as KeyboardInterrupt would end a generator. A caller that
    handles the exception can continue to read events from this iterator.
    """

    def __init__(
        self,
        transport: HostTransport,
        connection: AgentConnection,
        request: Request[E, R],
        interrupt: Interrupt | None = None,
        timeout: float | None = None,
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._request_type = type(request)
        self._interrupt = interrupt
        self.timeout = timeout  # in seconds, until the next frame; None for no timeout
        if timeout is None:
            is_slow = request.is_slow or transport.is_remote
            self.timeout = settings.RPC_SLOW_TIMEOUT_SECONDS if is_slow else settings.RPC_TIMEOUT_SECONDS
        self._reply: R | None = None
        self._error: ClusterError | None = None
        self._is_done = False
        self._window = 0  # the bytes that may be uploaded
        self._ends: bool | None = None  # whether the agent announced that it exits; None while unknown
        self._id = connection.request(encode_request(request))

    def __iter__(self) -> Iterator[E]:
        return self

    def __next__(self) -> E:
        """Return the next event.

        Raises:
            StopIteration: The request was completed.
            AgentDisconnectedError: The agent disconnected.
            ClusterError: The request failed, or timed out.
        """
        while True:
            if self._error is not None:
                raise self._error
            if self._is_done:
                raise StopIteration
            self._wait()
            frame = self._connection.take(self._id)
            if frame is None:
                self._connection.end(self._id)
                raise AgentDisconnectedError(
                    "the agent disconnected before it replied",
                    hint="Type the command again: it starts another agent, which adopts the tasks that run.",
                )
            self.timeout = None
            if frame.kind is FrameKind.EVENT:
                return cast(E, decode_response(self._request_type, frame.body, is_reply=False))
            if frame.kind is FrameKind.WINDOW:
                self._window += frame.body
            else:
                self._connection.end(self._id)
                self._ends = frame.body["ends"]
                if frame.kind is FrameKind.ERROR:
                    self._error = ClusterError.from_json(frame.body["value"])
                else:
                    self._reply = decode_response(self._request_type, frame.body["value"], is_reply=True)
                    self._is_done = True

    def _wait(self) -> None:
        """Wait for the next frame; raise ClusterError if nothing arrives in time."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        while not self._wait_for(None if deadline is None else max(0.0, deadline - time.monotonic())):
            if deadline is not None and time.monotonic() >= deadline:
                # The agent hangs, or the connection is lost: the next request must not wait for the same.
                self._connection.close()
                raise self._connection.channel.timeout_error(f"{self.timeout:g} s")

    def _wait_for(self, seconds: float | None, *fds: int) -> bool:
        """Wait until a frame has arrived, a descriptor is readable or the interrupt is handled; see `wait`."""
        if self._interrupt is None:
            return self._connection.wait(self._id, seconds, *fds)
        if self._connection.wait(self._id, seconds, self._interrupt.fileno(), *fds):
            return True
        self._interrupt.handle()
        return False

    def wait_readable(self, seconds: float) -> bool:
        """Wait for the next event or the end of the response; return whether something has arrived in that time."""
        return self._is_done or self._error is not None or self._wait_for(seconds)

    def send_file(self, file: BinaryIO) -> None:
        """Upload a file after the request, up to its end or until the agent sends something instead of receiving.

        The file's descriptor is read.
        """
        data = None
        while data != b"":
            if self._window == 0 or self._wait_for(None, file.fileno()):
                if not self._receive_window():
                    return
            elif readable_fds([file.fileno()], 0):
                data = os.read(file.fileno(), min(settings.RPC_CHUNK_MAX_BYTES, self._window))
                self._window -= len(data)
                self._connection.send_chunk(self._id, data)

    def send(self, blocks: Iterable[bytes]) -> bool:
        """Upload data after the request, without marking its end, so that more can follow.

        Return False if the agent has sent something instead of receiving all of it.
        """
        for block in blocks:
            rest = memoryview(block)
            while rest:
                if self._window == 0 and not self._receive_window():
                    return False
                part = rest[: min(settings.RPC_CHUNK_MAX_BYTES, self._window)]
                self._window -= len(part)
                self._connection.send_chunk(self._id, bytes(part))
                rest = rest[len(part) :]
        return True

    def _receive_window(self) -> bool:
        """Wait for the agent's permission to send more; return whether it was given, and not something else sent."""
        self._wait()
        frame = self._connection.peek(self._id)
        if frame is None or frame.kind is not FrameKind.WINDOW:
            return False
        self._connection.take(self._id)
        self._window += frame.body
        return True

    def result(self) -> R:
        """Skip the remaining events and return the reply."""
        for _ in self:
            continue
        return cast(R, self._reply)

    def close(self) -> None:
        """Cancel the request, unless its response has ended."""
        self._connection.cancel(self._id)

    def wait_for_agent_end(self) -> bool:
        """Close the connection and wait until the process of the agent that responded has exited.

        Return whether it exited before the timeout.
        """
        self._connection.close()
        return self._connection.channel.wait_for_end(settings.AGENT_EXIT_SECONDS)

    def close_and_reap(self) -> None:
        """Cancel the request; if the agent then exits, wait for its exit and disconnect from its host.

        An agent exits if it has no cluster and no other command is connected. A command that started one, for example
        only to read a log, therefore leaves neither a process nor a connection to its host behind. If the host cannot
        be reached, this returns without waiting.
        """
        self.close()
        if self._ends is False:
            return
        seconds = settings.AGENT_EXIT_SECONDS if self._ends else settings.AGENT_EXIT_UNANNOUNCED_SECONDS
        with contextlib.suppress(HostUnreachableError):
            if self._ends is None and self._transport.is_up():
                return
            self._connection.close()
            deadline = time.monotonic() + seconds
            while not self._connection.channel.wait_for_end(min(seconds, settings.AGENT_EXIT_POLL_SECONDS)):
                if self._transport.is_up() or time.monotonic() >= deadline:
                    return
            self._transport.disconnect()
