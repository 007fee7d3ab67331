"""One request to a cluster's agent: sent, and its answer read line by line."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, BinaryIO

from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Method, Request
from tfcluster.protocol.codec import CHUNK_LIMIT, Decoder, Message, encode, encode_chunk
from tfcluster.transport.base import Channel, HostTransport, HostUnreachableError
from tfcluster.transport.local import END_SECONDS

# For the first line of an answer, which most come with at once; what follows takes the time that it takes.
_ANSWER_SECONDS = 10.0
# These load TensorFlow's library first, wait for another change to end, or ask every task.
_LONGER = dict.fromkeys((Method.PREPARE, Method.APPLY, Method.TOPOLOGY, Method.WATCH, Method.RUN), 60.0)
# The same where the command hung up before the agent could say whether it ends.
_UNTOLD_SECONDS = 2.0
# Between two looks whether another command has given an agent a cluster that was about to end.
_LOOK_SECONDS = 2.0


class AgentDisconnectedError(ClusterError):
    """The agent went away before its answer ended."""


class AgentClient:
    """A cluster's agents on one host, for one request after another.

    Args:
        reach: The way to them.
        elsewhere: The host is not this machine, so the way can break while they live.
    """

    def __init__(self, reach: HostTransport, *, elsewhere: bool = False) -> None:
        self.reach = reach
        self.elsewhere = elsewhere

    def call(self, call: Method, **arguments: Any) -> Message:
        """Carry a request out and return its reply; its events are passed over.

        Raises:
            ClusterError: What the agent says, or that it went away.
        """
        return self.stream(call, **arguments).finish()

    def stream(self, call: Method, *, start: bool = False, **arguments: Any) -> ResponseStream:
        """Carry a request out and iterate over its events.

        Args:
            call: What to do.
            start: Start an agent if there is none, though the cluster is not up.
            **arguments: The call's arguments.

        Raises:
            ClusterError: There is no agent, or none could be started.
        """
        return ResponseStream(self.reach, self.reach.open(start=start), call, arguments)


class ResponseStream:
    """The answer to one request: iterate over its events, then take its reply.

    Not a generator, which an interrupt would end: whoever handles it can go on with the events.
    """

    def __init__(self, reach: HostTransport, agent: Channel, call: Method, arguments: dict[str, Any]) -> None:
        self.reply: Message | None = None
        self._reach = reach
        self._agent = agent
        self._timeout: float | None = _LONGER.get(call, _ANSWER_SECONDS)
        self._decoder = Decoder()
        self._arrived: deque[Message] = deque()
        self._ends: bool | None = None  # whether the agent said that it ends
        agent.send(encode(Request(call, arguments).to_message()))

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """The next event.

        Raises:
            StopIteration: The request was carried out.
            AgentGoneError: The agent went away.
            ClusterError: It failed, or the agent did not answer in time.
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
        """What has arrived next; the connection is closed when nothing will."""
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
        """For so many seconds the next line is waited for; None for as long as it takes."""
        return self._timeout

    def arrives_within(self, seconds: float) -> bool:
        """Wait for what comes next; whether it, or the end, has come within so many seconds."""
        return bool(self._arrived) or self.reply is not None or self._agent.wait_readable(seconds)

    def send_file(self, file: BinaryIO) -> None:
        """Send a file behind the request, up to its end or until the agent has more to say than to take.

        Raises:
            OSError: It cannot be read.
        """
        data = None
        while data != b"" and not self._agent.wait_readable_or(file.fileno()):
            data = os.read(file.fileno(), CHUNK_LIMIT)
            if not self._agent.send(encode_chunk(data)):
                return

    def finish(self) -> Message:
        """Pass over the events that are left and return the reply."""
        for _ in self:
            continue
        assert self.reply is not None, "the iteration ends with it"
        return self.reply

    def close(self) -> None:
        """Hang up, whether or not the answer has ended."""
        self._agent.close()

    def wait_for_agent_end(self) -> bool:
        """Wait until the process of the agent that answered has ended; whether it did before patience ran out."""
        return self._agent.wait_for_end(END_SECONDS)

    def leave(self) -> None:
        """Hang up; an agent that has no cluster and no other command ends now, and this returns when its process has.

        So a command that had one started, only to read a log perhaps, leaves nothing, nor a connection to its host.
        Nobody waits for a host that cannot be reached.
        """
        self._agent.close()
        if self._ends is False:
            return
        seconds = END_SECONDS if self._ends else _UNTOLD_SECONDS
        with contextlib.suppress(HostUnreachableError):
            if self._ends is None and self._reach.is_up():
                return
            deadline = time.monotonic() + seconds
            while not self._agent.wait_for_end(min(seconds, _LOOK_SECONDS)):
                if self._reach.is_up() or time.monotonic() >= deadline:
                    return
            self._reach.disconnect()
