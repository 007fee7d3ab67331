"""The relay: a process on the user's machine that holds the links to the hosts of a cluster for all commands.

It is to `connect:` what ssh's shared connection (ControlMaster) is to ssh. A command that has started a session on a
host passes it to the relay; later commands connect through it, without starting anything on the host. It ends with its
last link; a link ends when no command has used it for some minutes, or the host does not answer its pings.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.os.daemonize import set_process_title
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.codec import Message, decode_line, encode
from tfcluster.transport.relay.multiplexer import Multiplexer

#: Precedes each reply, which is JSON: its length. What follows the reply are the bytes of the carried connection.
REPLY_HEADER = struct.Struct(">I")


def main(listener: str, path: str, title: str) -> None:
    """Serve a listening socket, named by its descriptor; at the end its path is removed."""
    set_process_title(title)
    asyncio.run(_Relay(socket.socket(fileno=int(listener)), path).serve())


@dataclass(eq=False)
class _Link:
    """The connection to one host, and the process on this machine that has started the host's end."""

    multiplexer: Multiplexer
    process: ProcessHandle | None
    agent: Message | None  # where the host's agent listens, if the command knew it
    used_at: float = field(default_factory=time.monotonic)
    pinged_at: float = 0.0


class _Relay:
    """Answers one request of each connection, `find`, `keep`, `connect` or `close`, which `host_link` sends."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self._listener = listener
        self._path = path
        self._links: dict[str, _Link] = {}
        self._is_due = asyncio.Event()  # the next check: a link has ended, or the time has come
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references

    async def serve(self) -> None:
        self._listener.setblocking(False)
        self._start(self._accept())
        is_used = True
        while is_used:
            asyncio.get_running_loop().call_later(settings.RELAY_CHECK_SECONDS, self._is_due.set)
            await self._is_due.wait()
            self._is_due.clear()
            for host, link in list(self._links.items()):
                self._check(host, link)
                self._start(link.multiplexer.reset_abandoned())
            is_used = bool(self._links)
        os.unlink(self._path)  # before the listener is closed, so that a command makes another one at once
        self._listener.close()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check(self, host: str, link: _Link) -> None:
        """Close a link that is lost or was not used for long, and ping the host."""
        now, heard_at = time.monotonic(), link.multiplexer.heard_at
        if not link.multiplexer.is_idle:
            link.used_at = now
        is_waiting = link.pinged_at > heard_at
        is_lost = is_waiting and now - link.pinged_at > settings.PING_LOST_SECONDS
        if is_lost or now - link.used_at > settings.SSH_PERSIST_SECONDS:
            self._close(host)
        elif not is_waiting and now - heard_at > settings.PING_SECONDS:
            link.pinged_at = now
            self._start(link.multiplexer.ping())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            self._start(self._answer(connection))

    async def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ClusterError):  # the command has gone
            request, passed = await _receive_request(connection)
            method, host = request["method"], request["host"]
            if method == "keep" and passed is not None:
                await self._keep(host, request, passed)
            link = self._links.get(host)
            if method == "close" and link is not None:
                self._close(host)
            agent = None if link is None else link.agent
            target = (request["port"] or (agent or {}).get("socket")) if method == "connect" and link else None
            reply = encode({"linked": link is not None, "carries": target is not None, "agent": agent})
            await asyncio.get_running_loop().sock_sendall(connection, REPLY_HEADER.pack(len(reply)) + reply)
            if link is not None and target is not None:
                await link.multiplexer.carry(target, await asyncio.open_connection(sock=connection))
                return
        connection.close()

    async def _keep(self, host: str, request: Message, passed: socket.socket) -> None:
        link = self._links.get(host)
        if link is not None:  # another command was faster
            passed.close()
            link.agent = request["agent"] or link.agent
            return
        process = ProcessHandle.from_pid(request["pid"])
        self._links[host] = _Link(Multiplexer(await asyncio.open_connection(sock=passed)), process, request["agent"])
        self._start(self._run(host, self._links[host]))

    async def _run(self, host: str, link: _Link) -> None:
        await link.multiplexer.run()
        if self._links.get(host) is link:
            del self._links[host]
        self._is_due.set()
        # The command may be a script that started others. A process of another user, as after sudo, ends by itself.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if link.process is not None and link.process.leads_session():
                os.killpg(link.process.pid, signal.SIGKILL)

    def _close(self, host: str) -> None:
        """End a link; `_run` does the rest."""
        self._links.pop(host).multiplexer.close()


async def _receive_request(connection: socket.socket) -> tuple[Message, socket.socket | None]:
    """Receive a request, which a command sends at once, and the descriptor that comes with it."""
    readable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.setblocking(False)
    asyncio.get_running_loop().add_reader(connection, readable.set_result, None)
    try:
        await readable
    finally:
        asyncio.get_running_loop().remove_reader(connection)
    data, descriptors, _, _ = socket.recv_fds(connection, settings.IO_BLOCK_BYTES, 1)
    passed = socket.socket(fileno=descriptors[0]) if descriptors else None
    return decode_line(data), passed
