"""Carry any number of connections over one stream of bytes, such as the standard streams of a command on a host.

Both ends exchange frames: a header with the kind, the number of the connection and the length, and that many bytes. The
end on the user's machine opens connections, each with a request, and the one on the host answers it.

Flow control: an end sends only within the window of the connection, which the other one grants again as its reader
takes the data. So a reader that is slow or stopped delays no other connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any

from tfcluster import settings
from tfcluster.transport.children import reap_children

#: What a command asks of the host, as JSON.
HostRequest = dict[str, Any]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: What the host sends first, and what the connection leads to then; None if it ends.
Answer = tuple[bytes, Streams | None]

_HEADER = struct.Struct(">BII")


class _Kind(IntEnum):
    OPEN = 1  # data: the request as JSON
    DATA = 2
    END = 3  # no more data follows in this direction
    RESET = 4  # the connection is broken
    WINDOW = 5  # data: the number of bytes that may be sent in addition
    PING = 6
    PONG = 7


_NO_CONNECTION = 0


class _Connection:
    """One of the carried connections: the streams on this end, and what may still be sent to the other end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.arrived: asyncio.Queue[bytes] = asyncio.Queue()  # at most one window; empty data is the end
        self.window = settings.HOST_LINK_WINDOW_BYTES
        self.window_grew = asyncio.Event()
        self.ended_at: float | None = None  # when this end has sent all, by time.monotonic()
        self.stalled_at: float | None = None  # since when the other end grants no window
        self.socket: socket.socket | None = None  # of the streams on this end
        self.task: asyncio.Task[None] | None = None

    def receive(self, kind: _Kind, data: bytes) -> None:
        """Handle a frame about the connection."""
        if kind is _Kind.WINDOW:
            self.window += int.from_bytes(data, "big")
            self.window_grew.set()
        elif kind is _Kind.RESET:
            assert self.task is not None, "every connection has one"
            self.task.cancel()
        else:
            self.arrived.put_nowait(data)


class Multiplexer:
    """One end of the stream. `answer` answers a request on the host; None on the end that opens connections."""

    def __init__(self, streams: Streams, answer: Callable[[HostRequest], Awaitable[Answer]] | None = None) -> None:
        self._reader, self._writer = streams
        self._answer = answer
        self._connections: dict[int, _Connection] = {}
        self._numbers = itertools.count(1)
        self._has_ended = False
        self._posts: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references
        self.heard_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Return whether no connection is carried."""
        return not self._connections

    async def run(self) -> None:
        """Serve the stream until it ends; then all connections are closed."""
        try:
            # A ValueError: what runs on the host has printed something into the stream.
            with contextlib.suppress(asyncio.IncompleteReadError, OSError, ValueError):
                while True:
                    header = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                    kind, number, length = _Kind(header[0]), header[1], header[2]
                    data = await self._reader.readexactly(length)
                    self.heard_at = time.monotonic()
                    await self._receive(kind, number, data)
        finally:
            self._has_ended = True
            tasks = [connection.task for connection in self._connections.values() if connection.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.close()

    def close(self) -> None:
        """End the stream, and with it `run` and all connections."""
        self._writer.transport.abort()  # close() would wait until a stalled host has taken what is left to send

    async def carry(self, request: HostRequest, streams: Streams) -> None:
        """Carry a connection of this end to what answers a request there, until it has ended in both directions."""
        connection = _Connection(next(self._numbers))
        connection.task = asyncio.current_task()
        self._connections[connection.number] = connection
        try:
            if not self._has_ended:
                await self._send(_Kind.OPEN, connection.number, json.dumps(request).encode())
                await self._copy(connection, streams)
        finally:
            del self._connections[connection.number]
            streams[1].close()

    def ping(self) -> None:
        """Ask the other end for a sign of life, which `heard_at` shows."""
        self._post(_Kind.PING, _NO_CONNECTION)

    def reset_abandoned(self) -> None:
        """Reset the connections whose command has gone and whose agent, which hangs, has not ended or read them."""
        latest = time.monotonic() - settings.REMOTE_HANG_UP_SECONDS
        for connection in list(self._connections.values()):
            has_ended = connection.ended_at is not None and connection.ended_at < latest
            is_stalled = connection.stalled_at is not None and connection.stalled_at < latest
            if has_ended or (is_stalled and _has_hung_up(connection.socket)):
                connection.receive(_Kind.RESET, b"")
                self._post(_Kind.RESET, connection.number)

    def _post(self, kind: _Kind, number: int) -> None:
        task = asyncio.create_task(self._send(kind, number))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    async def _send(self, kind: _Kind, number: int, data: bytes = b"") -> None:
        with contextlib.suppress(OSError):  # `run` notices the end of the stream
            self._writer.write(_HEADER.pack(kind, number, len(data)) + data)
            await self._writer.drain()

    async def _receive(self, kind: _Kind, number: int, data: bytes) -> None:
        if kind is _Kind.PING:  # the end that pings does not wait here: it continues to read
            await self._send(_Kind.PONG, _NO_CONNECTION)
        elif kind is _Kind.OPEN:
            connection = self._connections[number] = _Connection(number)
            connection.task = asyncio.create_task(self._accept(connection, json.loads(data)))
            connection.task.add_done_callback(lambda _: self._connections.pop(number))
        elif number in self._connections:  # otherwise this end has reset it
            self._connections[number].receive(kind, data)

    async def _accept(self, connection: _Connection, request: HostRequest) -> None:
        assert self._answer is not None, "the other end opens no connections"
        first, streams = await self._answer(request)
        connection.window -= len(first)
        await self._send(_Kind.DATA, connection.number, first)
        if streams is None:
            await self._send(_Kind.END, connection.number)
        else:
            await self._copy(connection, streams)

    async def _copy(self, connection: _Connection, streams: Streams) -> None:
        """Copy data in both directions until both have ended or one has failed."""
        reader, writer = streams
        connection.socket = writer.get_extra_info("socket")
        halves = [
            asyncio.create_task(self._copy_out(connection, reader)),
            asyncio.create_task(self._copy_in(connection, writer)),
        ]
        has_ended = False
        try:
            done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
            has_ended = not any(half.exception() for half in done)
            if not has_ended:
                await self._send(_Kind.RESET, connection.number)
        finally:
            for half in halves:
                half.cancel()
            if has_ended:
                writer.close()
            else:
                writer.transport.abort()

    async def _copy_out(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(min(connection.window, settings.HOST_LINK_FRAME_BYTES)):
            connection.window -= len(data)
            await self._send(_Kind.DATA, connection.number, data)
            while connection.window == 0:
                connection.stalled_at = connection.stalled_at or time.monotonic()
                connection.window_grew.clear()
                await connection.window_grew.wait()
            connection.stalled_at = None
        await self._send(_Kind.END, connection.number)
        connection.ended_at = time.monotonic()

    async def _copy_in(self, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        while data := await connection.arrived.get():
            writer.write(data)
            await writer.drain()
            await self._send(_Kind.WINDOW, connection.number, len(data).to_bytes(4, "big"))
        writer.write_eof()


def _has_hung_up(connection: socket.socket | None) -> bool:
    """Return whether the other side of a socket is closed, although data may be left to read."""
    poll = select.poll()
    if connection is not None:
        poll.register(connection.fileno(), select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


_INPUT, _OUTPUT = 0, 1


def serve_link(answer: Callable[[HostRequest], Awaitable[Answer]]) -> None:
    """Carry connections over the standard streams of this process until its input ends, and exit the process."""

    async def serve() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, reap_children)  # agents that it has started
        await Multiplexer(await _standard_streams(), answer).run()

    asyncio.run(serve())
    os._exit(0)  # without waiting for threads, such as one that resolves a name


async def _standard_streams() -> Streams:
    """Return the streams of standard input and output: ssh's server makes both one socket, others two pipes."""
    if os.path.samestat(os.fstat(_INPUT), os.fstat(_OUTPUT)) and stat.S_ISSOCK(os.fstat(_INPUT).st_mode):
        return await asyncio.open_connection(sock=socket.socket(fileno=_INPUT))
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(_INPUT, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(_OUTPUT, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
