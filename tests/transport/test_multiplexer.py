"""A link carries many connections over one stream: their ends, a slow reader, and what happens when a part dies."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfcluster import settings
from tfcluster.transport.link.multiplexer import Answer, HostRequest, Multiplexer, Streams
from tfcluster.transport.link.process import _Link

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


GREETING = b"welcome\n"


async def answer(request: HostRequest) -> Answer:
    """Connect to the path that is asked for, and say so first."""
    try:
        return GREETING, await asyncio.open_unix_connection(request["path"])
    except OSError:
        return b"nothing listens there\n", None


@contextlib.asynccontextmanager
async def linked(path: Path, serve: Serve) -> AsyncIterator[tuple[Multiplexer, Multiplexer]]:
    """Both ends of a link; what listens at the path on the host's end serves each connection."""
    server = await asyncio.start_unix_server(serve, path)
    ends = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]

    here, there = Multiplexer(ends[0]), Multiplexer(ends[1], answer)
    tasks = [asyncio.create_task(each.run()) for each in (here, there)]
    try:
        yield here, there
    finally:
        here.close()
        await asyncio.gather(*tasks)
        server.close()


async def asked(here: Multiplexer, path: Path) -> tuple[Streams, asyncio.Task[None]]:
    """A command's connection to what listens at a path on the host, and the task that carries it."""
    ours, its = socket.socketpair()
    carried = asyncio.create_task(here.carry({"path": str(path)}, await asyncio.open_connection(sock=its)))
    return await asyncio.open_connection(sock=ours), carried


async def opened(here: Multiplexer, path: Path) -> tuple[Streams, asyncio.Task[None]]:
    """The same, after the host has answered."""
    streams, carried = await asked(here, path)
    assert await streams[0].readline() == GREETING
    return streams, carried


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send everything back after all of it has arrived."""
    writer.write(await reader.read())
    writer.close()


async def test_each_direction_ends_by_itself(tmp_path: Path) -> None:
    data = bytes(range(256)) * 8192  # several windows

    async with linked(tmp_path / "socket", echo) as (here, there):
        (reader, writer), carried = await opened(here, tmp_path / "socket")
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == data
        await carried
        writer.close()
        assert here.is_idle
        while not there.is_idle:  # its last frame is on the way
            await asyncio.sleep(0)


async def test_a_reader_that_stops_delays_no_other(tmp_path: Path) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline() == b"flood\n":
            with contextlib.suppress(OSError):
                while True:
                    writer.write(bytes(settings.HOST_LINK_FRAME_BYTES))
                    await writer.drain()
        await echo(reader, writer)

    async with linked(tmp_path / "socket", flood) as (here, _):
        (_, stopped), _ = await opened(here, tmp_path / "socket")
        stopped.write(b"flood\n")
        stopped.transport.pause_reading()  # type: ignore[attr-defined]
        (reader, writer), carried = await opened(here, tmp_path / "socket")
        writer.write(b"echo\nanswer")
        writer.write_eof()
        assert await reader.read() == b"answer"
        await carried
        for each in (writer, stopped):
            each.close()


async def test_what_does_not_listen_ends_the_connection_only(tmp_path: Path) -> None:
    async with linked(tmp_path / "socket", echo) as (here, _):
        (reader, nowhere), carried = await asked(here, tmp_path / "nothing")
        assert await reader.read() == b"nothing listens there\n"
        nowhere.close()
        await carried
        (reader, writer), _ = await opened(here, tmp_path / "socket")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_a_command_that_has_gone_leaves_no_connection_to_an_agent_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "REMOTE_HANG_UP_SECONDS", 0.0)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read()
            await asyncio.sleep(600)

    async with linked(tmp_path / "socket", hang) as (here, there):
        (_, writer), carried = await opened(here, tmp_path / "socket")
        writer.close()
        while not carried.done():
            here.reset_abandoned()
            await asyncio.sleep(0)
        while not there.is_idle:
            await asyncio.sleep(0)
        assert here.is_idle


async def test_a_link_with_data_that_nobody_takes_ends_with_its_connections(tmp_path: Path) -> None:
    ours, silent = socket.socketpair()
    here = Multiplexer(await asyncio.open_connection(sock=ours))
    running = asyncio.create_task(here.run())
    command, carried = await asked(here, Path("socket"))
    command[1].write(bytes(2 * settings.HOST_LINK_WINDOW_BYTES))
    later, too_late = await asked(here, Path("socket"))
    await asyncio.sleep(0)
    here.close()
    await running
    after, carried_after = await asked(here, Path("socket"))
    for reader, _ in (command, later, after):
        with contextlib.suppress(ConnectionError):  # not all was taken that the command has sent
            assert await reader.read() == b""
    await asyncio.gather(carried, too_late, carried_after, return_exceptions=True)
    for _, writer in (command, later, after):
        writer.transport.abort()
    silent.close()


async def test_a_killed_command_whose_data_an_agent_does_not_take_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "REMOTE_HANG_UP_SECONDS", 0.0)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(600)

    async with linked(tmp_path / "socket", hang) as (here, there):
        (_, writer), carried = await opened(here, tmp_path / "socket")
        writer.write(bytes(4 * settings.HOST_LINK_WINDOW_BYTES))
        for _ in range(100):
            here.reset_abandoned()
            await asyncio.sleep(0.001)
        assert not carried.done()  # the command is there: its data may be taken later
        writer.transport.abort()
        while not carried.done():
            here.reset_abandoned()
            await asyncio.sleep(0)
        while not there.is_idle:
            await asyncio.sleep(0)


async def test_what_is_no_frame_ends_the_link() -> None:
    ours, other = socket.socketpair()
    here = Multiplexer(await asyncio.open_connection(sock=ours))
    other.sendall(b"Welcome to this host, which prints something\n")
    await here.run()
    other.close()


async def has_ended(connection: socket.socket) -> bool:
    """Read what has arrived; return whether the other end has closed the connection."""
    for _ in range(3):  # a closed transport closes its socket in the next iteration of the event loop
        await asyncio.sleep(0)
    with contextlib.suppress(BlockingIOError):
        while connection.recv(settings.IO_BLOCK_BYTES):
            pass
        return True
    return False


async def test_a_link_process_that_waited_for_a_processor_does_not_blame_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, its = socket.socketpair()
    its.setblocking(False)
    link = _Link(Multiplexer(await asyncio.open_connection(sock=ours)), process=None)
    now = time.monotonic() + settings.PING_SECONDS + 1
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)
        link.check()
        now += 3 * settings.PING_LOST_SECONDS
        link.check()
        assert not await has_ended(its)
        for _ in range(math.ceil(settings.PING_LOST_SECONDS / settings.HOST_LINK_CHECK_SECONDS)):
            now += settings.HOST_LINK_CHECK_SECONDS
            link.check()
        assert await has_ended(its)
    its.close()


async def test_the_streams_of_the_host_may_be_two_sockets(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(echo, tmp_path / "socket")
    (to_host, host_input), (from_host, host_output) = socket.socketpair(), socket.socketpair()
    program = (
        "from tests.transport.test_multiplexer import answer; "
        "from tfcluster.transport.link.multiplexer import serve_link; serve_link(answer)"
    )
    with host_input, host_output:
        host = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdin=host_input.fileno(), stdout=host_output.fileno()
        )
    _, writer = await asyncio.open_connection(sock=to_host)
    reader, unused = await asyncio.open_connection(sock=from_host)
    here = Multiplexer((reader, writer))
    running = asyncio.create_task(here.run())
    (answer, command), carried = await opened(here, tmp_path / "socket")
    command.write(b"there and back")
    command.write_eof()
    assert await answer.read() == b"there and back"
    await carried
    command.close()
    here.close()
    assert await asyncio.to_thread(host.wait, 60) == 0
    await running
    unused.close()
    server.close()
