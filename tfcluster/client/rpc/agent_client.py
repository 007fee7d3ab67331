"""The RPC client of an agent: send requests over one connection and read their responses."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Generic, Protocol, TypeVar, cast

from tfcluster import settings
from tfcluster.client.rpc.agent_connection import AgentConnection
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Request, decode_response, encode_request
from tfcluster.protocol.codec import FrameKind
from tfcluster.transport.channel import readable_fds
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.host_transport import HostTransport

E = TypeVar("E")
R = TypeVar("R")


class AgentDisconnectedError(ClusterError):
    """The agent disconnected before its response ended."""


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

        Args:
            start: Start an agent if there is none, even if the cluster is not up, and wait for its exit afterwards.
            timeout: The seconds to wait for the first frame of the response; None for the default.

        Raises:
            ClusterError: The agent replied with an error, or disconnected.
        """
        response = self.stream(request, start=start, timeout=timeout)
        try:
            return response.result()
        finally:
            if start:
                response.close_and_reap()

    def stream(
        self,
        request: Request[E, R],
        *,
        start: bool = False,
        interrupt: Interrupt | None = None,
        timeout: float | None = None,
    ) -> ResponseStream[E, R]:
        """Send a request and return the stream of its response.

        Args:
            start: Start an agent if there is none, even if the cluster is not up.
            interrupt: What the waits for the response must not delay.
            timeout: The seconds to wait for the first frame of the response; None for the default.

        Raises:
            ClusterError: There is no agent, or none could be started.
        """
        with self._connecting:
            connection = self._connection
            if connection is None or not connection.is_usable:
                channel = self.transport.open(start=start, upgrade=self._upgrade or request.changes)
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
        self._timeout = timeout
        if timeout is None:
            is_slow = request.is_slow or transport.is_remote
            self._timeout = settings.RPC_SLOW_TIMEOUT_SECONDS if is_slow else settings.RPC_TIMEOUT_SECONDS
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
                    hint="Type the command again: it starts another agent, which adopts the running tasks.",
                )
            self._timeout = None
            if frame.kind is FrameKind.EVENT:
                return cast(E, decode_response(self._request_type, frame.body, is_reply=False))
            if frame.kind is FrameKind.WINDOW:
                self._window += frame.body
            else:
                self._finish(frame.kind, frame.body)

    def _finish(self, kind: FrameKind, body: Any) -> None:
        self._connection.end(self._id)
        self._ends = body["ends"]
        if kind is FrameKind.ERROR:
            self._error = ClusterError.from_json(body["value"])
            raise self._error
        self._reply = decode_response(self._request_type, body["value"], is_reply=True)
        self._is_done = True

    def _wait(self) -> None:
        """Wait for the next frame; raise ClusterError if nothing arrives in time."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while not self._wait_for(None if deadline is None else max(0.0, deadline - time.monotonic())):
            if deadline is not None and time.monotonic() >= deadline:
                # The agent hangs, or the connection is lost: the next request must not wait for the same.
                self._connection.close()
                raise self._connection.channel.timeout_error(f"{self._timeout:g} s")

    def _wait_for(self, seconds: float | None, *fds: int) -> bool:
        """Wait until a frame has arrived, a descriptor is readable or the interrupt is handled; see `wait`."""
        if self._interrupt is None:
            return self._connection.wait(self._id, seconds, *fds)
        if self._connection.wait(self._id, seconds, self._interrupt.fileno(), *fds):
            return True
        self._interrupt.handle()
        return False

    @property
    def timeout(self) -> float | None:
        """Return the timeout in seconds until the next frame; None for no timeout."""
        return self._timeout

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
