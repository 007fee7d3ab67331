"""One connection to an agent, which carries the requests of all threads of a command."""

from __future__ import annotations

import itertools
import math
import threading
import time
import weakref
from collections import deque
from typing import Any

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.protocol.codec import Frame, FrameDecoder, FrameKind, encode_chunk, encode_frame
from tfcluster.transport.channel import Channel, readable_fds

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
        self._heard_at = time.monotonic()
        self._pinged_at: float | None = None  # None if something has arrived since
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
                if self._wait_readable(remaining, *fds):
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

    def _wait_readable(self, seconds: float | None, *fds: int) -> bool:
        """Wait as the channel does; if it does not notice a lost link, ping the agent, and close it if unanswered."""
        if self.channel.notices_lost_link:
            return self.channel.wait_readable(seconds, *fds)
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            since, limit = self._heard_at, settings.PING_SECONDS
            if self._pinged_at is not None:
                since, limit = self._pinged_at, settings.PING_LOST_SECONDS
            if self.channel.wait_readable(max(0.0, min(since + limit, deadline) - time.monotonic()), *fds):
                self._heard_at, self._pinged_at = time.monotonic(), None
                return True
            if time.monotonic() >= since + limit and self._pinged_at is not None:
                self.close()
            elif time.monotonic() >= since + limit:
                self._pinged_at = time.monotonic()
                with self._sending:
                    self.channel.send(encode_frame(Frame(_NO_REQUEST, FrameKind.PING)))
            if self._is_closed or time.monotonic() >= deadline or readable_fds(fds, 0):
                return False

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
