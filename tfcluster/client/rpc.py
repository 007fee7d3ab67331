"""The RPC client of an agent: send a request and read the response line by line."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, BinaryIO

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Method, Request
from tfcluster.protocol.codec import Decoder, Message, encode, encode_chunk
from tfcluster.transport.base import Channel, HostTransport, HostUnreachableError

# These methods first load TensorFlow's library, wait for another change to end, or query every task.
_SLOW_METHODS = {Method.PREPARE, Method.APPLY, Method.TOPOLOGY, Method.WATCH, Method.RUN}


class AgentDisconnectedError(ClusterError):
    """The agent disconnected before its response ended."""


class AgentClient:
    """An RPC client for a cluster's agent on one host; each request goes to the agent that is running at that time.

    Args:
        reach: The transport to the host.
        elsewhere: Whether the host is remote, so that the connection can break while the agent lives.
    """

    def __init__(self, reach: HostTransport, *, elsewhere: bool = False) -> None:
        self.reach = reach
        self.elsewhere = elsewhere

    def call(self, call: Method, **arguments: Any) -> Message:
        """Send a request and return its reply, ignoring its events.

        Args:
            call: The method.
            **arguments: The method's arguments.

        Raises:
            ClusterError: The agent replied with an error, or disconnected.
        """
        return self.stream(call, **arguments).finish()

    def stream(self, call: Method, *, start: bool = False, **arguments: Any) -> ResponseStream:
        """Send a request and return the stream of its response.

        Args:
            call: The method.
            start: Start an agent if there is none, even if the cluster is not up.
            **arguments: The method's arguments.

        Raises:
            ClusterError: There is no agent, or none could be started.
        """
        return ResponseStream(self.reach, self.reach.open(start=start), call, arguments)


class ResponseStream:
    """The response to one request: an iterator over its events, then its reply.

    This is not a generator, because an exception such as KeyboardInterrupt would end a generator. A caller that
    handles the exception can continue to read events from this iterator.
    """

    def __init__(self, reach: HostTransport, agent: Channel, call: Method, arguments: dict[str, Any]) -> None:
        self.reply: Message | None = None
        self._reach = reach
        self._agent = agent
        is_slow = call in _SLOW_METHODS
        self._timeout: float | None = settings.RPC_SLOW_TIMEOUT_SECONDS if is_slow else settings.RPC_TIMEOUT_SECONDS
        self._decoder = Decoder()
        self._arrived: deque[Message] = deque()
        self._ends: bool | None = None  # whether the agent announced that it exits; None while unknown
        agent.send(encode(Request(call, arguments).to_message()))

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Return the next event.

        Raises:
            StopIteration: The request was completed.
            AgentDisconnectedError: The agent disconnected.
            ClusterError: The request failed, or timed out.
        """
        if self.reply is not None:
            raise StopIteration
        while not self._arrived:
            self._arrived.extend(self._decoder.feed(self._receive()))
        message = self._arrived.popleft()
        if "event" in message:
            event: Message = message["event"]
            return event
        self._agent.close()
        self._ends = message.get("ends", False)
        if "error" in message:
            raise ClusterError.from_json(message["error"])
        self.reply = message["reply"]
        raise StopIteration

    def _receive(self) -> bytes:
        """Receive the next data; close the connection if no more can arrive."""
        data = b""
        try:
            data = self._agent.receive(self._timeout)
            self._timeout = None
        finally:
            if not data:
                self._agent.close()
        if not data:
            raise AgentDisconnectedError(
                "the agent went away before it answered",
                hint="`tfcluster status` starts another one, which finds the tasks.",
            )
        return data

    @property
    def patience(self) -> float | None:
        """Return the timeout in seconds until the next line; None for no timeout."""
        return self._timeout

    def arrives_within(self, seconds: float) -> bool:
        """Wait for the next message or the end of the stream.

        Args:
            seconds: The timeout.

        Returns:
            Whether something arrived within the timeout.
        """
        return bool(self._arrived) or self.reply is not None or self._agent.wait_readable(seconds)

    def send_file(self, file: BinaryIO) -> None:
        """Upload a file after the request, up to its end or until the agent sends something instead of receiving.

        Args:
            file: The open file; its descriptor is read.

        Raises:
            OSError: The file cannot be read.
        """
        data = None
        while data != b"" and not self._agent.wait_readable_or(file.fileno()):
            data = os.read(file.fileno(), settings.RPC_CHUNK_MAX_BYTES)
            if not self._agent.send(encode_chunk(data)):
                return

    def finish(self) -> Message:
        """Skip the remaining events and return the reply."""
        for _ in self:
            continue
        assert self.reply is not None, "the iteration ends with it"
        return self.reply

    def close(self) -> None:
        """Close the connection, whether or not the response has ended."""
        self._agent.close()

    def wait_for_agent_end(self) -> bool:
        """Wait until the process of the agent that responded has exited.

        Returns:
            Whether it exited before the timeout.
        """
        return self._agent.wait_for_end(settings.AGENT_EXIT_SECONDS)

    def leave(self) -> None:
        """Close the connection; if the agent then exits, wait for its exit and disconnect from its host.

        An agent exits if it has no cluster and no other command is connected. A command that started one, for example
        only to read a log, therefore leaves neither a process nor a connection to its host behind. If the host cannot
        be reached, this returns without waiting.
        """
        self._agent.close()
        if self._ends is False:
            return
        seconds = settings.AGENT_EXIT_SECONDS if self._ends else settings.AGENT_EXIT_UNANNOUNCED_SECONDS
        with contextlib.suppress(HostUnreachableError):
            if self._ends is None and self._reach.is_up():
                return
            deadline = time.monotonic() + seconds
            while not self._agent.wait_for_end(min(seconds, settings.AGENT_EXIT_POLL_SECONDS)):
                if self._reach.is_up() or time.monotonic() >= deadline:
                    return
            self._reach.disconnect()
