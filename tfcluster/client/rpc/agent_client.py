"""The RPC client of an agent: each request has a connection of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Generic, Protocol, TypeVar, cast

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Request, decode_response, encode_request
from tfcluster.protocol.codec import Message, MessageDecoder, encode, encode_block
from tfcluster.transport.channel import Channel, readable_fds
from tfcluster.transport.errors import HostUnreachableError

if TYPE_CHECKING:
    from tfcluster.transport.remote_transport import HostTransport

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
    """An RPC client for a cluster's agent on one host.

    With `upgrade`, each request replaces an agent of an older version, as those do that change the cluster.
    """

    def __init__(self, transport: HostTransport, *, upgrade: bool = False) -> None:
        self.transport = transport
        self._upgrade = upgrade

    def call(self, request: Request[E, R], *, start: bool = False, timeout: float | None = None) -> R:
        """Send a request and return its reply, ignoring its events.

        If the agent disconnects, a request that changes nothing is sent once more, to the agent that follows.

        Args:
            start: Start an agent if there is none, even if the cluster is not up, and wait for its exit afterwards.
            timeout: The seconds to wait for the first line of the response; None for the default.

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
                else:
                    response.close()

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
            timeout: The seconds to wait for the first line of the response; None for the default.

        Raises:
            ClusterError: There is no agent, or none could be started.
        """
        upgrade = (self._upgrade or request.changes) and not dry
        channel = self.transport.open(start=start, upgrade=upgrade, dry=dry)
        return ResponseStream(self.transport, channel, request, interrupt, timeout)


class ResponseStream(Generic[E, R]):
    """The response to one request: an iterator over its events, then its reply.

    The greeting must have been sent over the channel before.

    This is not a generator, because an exception such as KeyboardInterrupt would end a generator. A caller that
    handles the exception can continue to read events from this iterator.
    """

    def __init__(
        self,
        transport: HostTransport,
        channel: Channel,
        request: Request[E, R],
        interrupt: Interrupt | None = None,
        timeout: float | None = None,
    ) -> None:
        self._transport = transport
        self._channel = channel
        self._request_type = type(request)
        self._interrupt: Interrupt | None = None
        self.timeout = timeout  # in seconds, until the next event; None for no timeout
        if timeout is None:
            is_slow = request.is_slow or transport.is_remote
            self.timeout = settings.RPC_SLOW_TIMEOUT_SECONDS if is_slow else settings.RPC_TIMEOUT_SECONDS
        self._decoder = MessageDecoder(is_agent=False)
        self._next: Message | None = None  # the next message, if it has arrived
        self._has_hung_up = False  # the agent, after its last message
        self._reply: R | None = None
        self._error: ClusterError | None = None
        self._is_done = False
        self._ends: bool | None = None  # whether the agent announced that it exits; None while unknown
        self._send(encode(encode_request(request)))  # if the agent has disconnected, what it sent before shows why
        self._interrupt = interrupt

    def __iter__(self) -> Iterator[E]:
        return self

    def __next__(self) -> E:
        """Return the next event.

        Raises:
            StopIteration: The request was completed.
            AgentDisconnectedError: The agent disconnected.
            ClusterError: The request failed, or timed out.
        """
        if self._error is not None:
            raise self._error
        if self._is_done:
            raise StopIteration
        self._wait()
        if self._error is not None:
            raise self._error
        message, self._next = self._next, None
        if message is None:
            raise AgentDisconnectedError(
                "the agent disconnected before it replied",
                hint="Type the command again: it starts another agent, which adopts the tasks that run.",
            )
        self.timeout = None
        if "event" in message:
            return cast(E, decode_response(self._request_type, message["event"], is_reply=False))
        self._ends = bool(message.get("ends"))
        if "error" in message:
            self._error = ClusterError.from_json(message["error"])
            raise self._error
        self._reply = decode_response(self._request_type, message.get("reply"), is_reply=True)
        self._is_done = True
        raise StopIteration

    def _wait(self) -> None:
        """Wait for the next message; raise ClusterError if nothing arrives in time."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        while not self._wait_for(None if deadline is None else max(0.0, deadline - time.monotonic())):
            self._check(deadline)

    def _check(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            self._channel.close()
            raise self._channel.timeout_error(f"{self.timeout:g} s")

    def _wait_for(self, seconds: float | None, *fds: int, to_send: bool = False) -> bool:
        """Wait for the next message, or the end of the connection, or an error; return whether it has arrived.

        The wait also ends when a descriptor is readable, the interrupt was handled or, with `to_send`, data can be
        sent.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        others = fds if self._interrupt is None else (*fds, self._interrupt.fileno())
        while not self._has_arrived():
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._channel.wait_readable(remaining, *others, to_send=to_send):
                if self._interrupt is not None:
                    self._interrupt.handle()
                return False
            self._receive()
        return True

    def _has_arrived(self) -> bool:
        if self._next is None and self._error is None:
            try:
                self._next = self._decoder.take_message()
            except ClusterError as error:
                self._error = error
                self._channel.close()
        return self._next is not None or self._error is not None or self._has_hung_up

    def _receive(self) -> None:
        try:
            data = self._channel.receive(None)
            self._decoder.feed(data)
        except BaseException:  # a signal: a part of the data may be lost
            self._channel.close()
            raise
        self._has_hung_up = not data

    def wait_readable(self, seconds: float) -> bool:
        """Wait for the next event or the end of the response; return whether something has arrived in that time."""
        return self._is_done or self._error is not None or self._wait_for(seconds)

    def send_file(self, file: BinaryIO) -> None:
        """Upload a file after the request, up to its end or until the agent sends something instead of receiving.

        The file's descriptor is read.
        """
        data = None
        while data != b"":
            if self._wait_for(None, file.fileno()):
                return
            if readable_fds([file.fileno()], 0):
                data = os.read(file.fileno(), settings.RPC_BLOCK_MAX_BYTES)
                if not self._send(encode_block(data)):
                    return

    def send(self, blocks: Iterable[bytes]) -> bool:
        """Upload data after the request, without marking its end, so that more can follow.

        Return False if the agent has sent something instead of receiving all of it.
        """
        size = settings.RPC_BLOCK_MAX_BYTES
        parts = (block[start : start + size] for block in blocks for start in range(0, len(block), size))
        return all(self._send(encode_block(part)) for part in parts)

    def _send(self, data: bytes) -> bool:
        """Send data; return False if the agent has sent something, or hung up, instead of receiving all of it.

        The time-out is that of the next event.
        """
        deadline, rest = None if self.timeout is None else time.monotonic() + self.timeout, memoryview(data)
        while rest:
            if self._wait_for(None if deadline is None else max(0.0, deadline - time.monotonic()), to_send=True):
                return False
            sent = self._channel.send_some(rest)
            if sent == 0:
                self._check(deadline)
            rest = rest[sent:]
        return True

    def result(self) -> R:
        """Skip the remaining events and return the reply."""
        for _ in self:
            continue
        return cast(R, self._reply)

    def close(self) -> None:
        """Cancel the request, unless its response has ended."""
        self._channel.close()

    def wait_for_agent_end(self) -> bool:
        """Close the connection and wait until the process of the agent that responded has exited.

        Return whether it exited before the timeout.
        """
        self._channel.close()
        return self._channel.wait_for_end(settings.AGENT_EXIT_SECONDS)

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
            deadline = time.monotonic() + seconds
            while not self._channel.wait_for_end(min(seconds, settings.AGENT_EXIT_POLL_SECONDS)):
                if self._transport.is_up() or time.monotonic() >= deadline:
                    return
            self._transport.disconnect()
