"""The end of a link on the host: dial the sockets and ports there that commands connect to."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable

from tfcluster.transport.relay.multiplexer import Multiplexer, Streams, Target

_INPUT, _OUTPUT = 0, 1


def serve_link(on_connected: Callable[[], None]) -> None:
    """Carry connections over the standard streams of this process until its input ends, and exit the process.

    `on_connected` is called after each connection that was made.
    """
    asyncio.run(_serve(on_connected))
    os._exit(0)  # without waiting for threads, such as one that resolves a name


async def _serve(on_connected: Callable[[], None]) -> None:
    async def dial(target: Target) -> Streams:
        streams = await _connect(target)
        on_connected()
        return streams

    await Multiplexer(await _standard_streams(), dial).run()


async def _connect(target: Target) -> Streams:
    if isinstance(target, int):
        return await asyncio.open_connection("127.0.0.1", target)
    return await asyncio.open_unix_connection(target)


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
