"""The link process: it holds the links from this machine to the hosts of a cluster, for all commands.

A command that has started a session on a host passes it on; it and later commands connect through it, without starting
anything else on the host. The process ends with its last link; a link ends when no command has used it for some
minutes, or the host does not answer its pings.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import struct
import time
from dataclasses import dataclass, field

from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.os.daemonize import raise_descriptor_limit, set_process_title
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.codec import Message, decode_line, encode
from tfcluster.transport.link.multiplexer import Multiplexer

#: Precedes each reply, which is JSON: its length. What follows the reply are the bytes of the carried connection.
REPLY_HEADER = struct.Struct(">I")


def main(listener: str, path: str, title: str) -> None:
    """Serve a listening socket, named by its descriptor; at the end its path is removed."""
    set_process_title(title)
    raise_descriptor_limit()
    asyncio.run(_LinkProcess(socket.socket(fileno=int(listener)), path).serve())


@dataclass(eq=False)
class _Link:
    """The connection to one host, and the process on this machine that has started the host's end."""

    multiplexer: Multiplexer
    process: ProcessHandle | None  # with what it has started, as an ssh has its proxy, it is a session of its own
    used_at: float = field(default_factory=time.monotonic)
    pinged_at: float = 0.0
    silence: float = 0.0  # since the ping, in seconds in which this process was able to notice an answer
    checked_at: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """Carry connections until the link ends, and end its process then."""
        try:
            await self.multiplexer.run()
        finally:
            # A process of another user, as after sudo, ends by itself.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self.process is not None and self.process.leads_session():
                    os.killpg(self.process.pid, signal.SIGKILL)

    def check(self) -> None:
        """End a link that is lost or was not used for long, and ping the host."""
        now, heard_at = time.monotonic(), self.multiplexer.heard_at
        if not self.multiplexer.is_idle:
            self.used_at = now
        is_waiting = self.pinged_at > heard_at
        elapsed, self.checked_at = now - self.checked_at, now
        # A check that is late shows that this process had to wait for a processor, as the host's answer may have.
        self.silence = self.silence + min(elapsed, settings.HOST_LINK_CHECK_SECONDS) if is_waiting else 0.0
        is_lost = self.silence > settings.PING_LOST_SECONDS
        if is_lost or now - self.used_at > settings.SSH_PERSIST_SECONDS:
            self.multiplexer.close()
        elif not is_waiting and now - heard_at > settings.PING_SECONDS:
            self.pinged_at = now
            self.multiplexer.ping()
        self.multiplexer.reset_abandoned()


class _LinkProcess:
    """Answers one request of each connection, `find`, `keep`, `connect` or `close`, which `host_link` sends."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self._listener = listener
        self._path = path
        self._file = os.stat(path)
        self._links: dict[str, _Link] = {}
        self._leaving: set[_Link] = set()  # links that were closed, and carry connections yet
        self._runs: dict[_Link, asyncio.Task[None]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._spare = os.open(os.devnull, os.O_RDONLY)  # a descriptor for when no other one is left
        self._is_ended = False
        self._is_due = asyncio.Event()  # the next check: a link has ended or is to be closed, or the time has come

    async def serve(self) -> None:
        """Serve until the last link has ended, or SIGTERM arrives."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        self._listener.setblocking(False)
        accepting = asyncio.create_task(self._accept())
        is_used = True
        while is_used and not self._is_ended:
            timer = loop.call_later(settings.HOST_LINK_CHECK_SECONDS, self._is_due.set)
            await self._is_due.wait()
            timer.cancel()
            self._is_due.clear()
            if not self._owns_path():  # no command can connect any more
                self._leaving.update(self._runs)
            for link in list(self._runs):
                link.check()
                if link in self._leaving and link.multiplexer.is_idle:
                    link.multiplexer.close()
            is_used = bool(self._runs or self._answers)
        if self._owns_path():
            os.unlink(self._path)  # before the listener is closed, so that a command makes another one at once
        accepting.cancel()
        self._listener.close()
        for link in self._runs:
            link.multiplexer.close()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)

    def _owns_path(self) -> bool:
        """Return whether the socket is there: a cleaner may have removed it, and another process made a new one."""
        try:
            return os.path.samestat(os.stat(self._path), self._file)
        except OSError:
            return False

    def _end(self) -> None:
        self._is_ended = True
        self._is_due.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left
                if not self._refuse():
                    await asyncio.sleep(settings.HOST_LINK_CHECK_SECONDS)
                continue
            answer = asyncio.create_task(self._answer(connection))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    def _refuse(self) -> bool:
        """Tell a command that no descriptor is left, by means of the spare one; return whether that was possible.

        Nothing else of this process may take the spare one in between, so this does not wait.
        """
        os.close(self._spare)
        try:
            connection, _ = self._listener.accept()
            with connection:
                connection.sendall(_framed(_no_descriptors()))
        except OSError:
            return False
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        return True

    async def _answer(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError, ClusterError):  # the command has gone
            try:
                if await self._handle(connection):
                    return
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                await _reply(connection, _no_descriptors())
        connection.close()

    async def _handle(self, connection: socket.socket) -> bool:
        """Answer the request of a connection; return whether it was carried then, and is closed."""
        request = decode_line((await _receive(connection))[0])
        method, host = request["method"], request["host"]
        link = self._links.get(host)
        if method == "keep" and link is None:
            await _reply(connection, {"linked": False})  # the command passes its session
            data, passed = await _receive(connection)
            if passed is None:  # the kernel drops a descriptor that exceeds the limit
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            await _reply(connection, {"kept": await self._keep(host, decode_line(data), passed)})
            return False
        if method == "close" and link is not None:
            self._leaving.add(self._links.pop(host))
            self._is_due.set()
        await _reply(connection, {"linked": link is not None})
        if method != "connect" or link is None:
            return False
        link.used_at = time.monotonic()
        await link.multiplexer.carry(request["request"], await asyncio.open_connection(sock=connection))
        return True

    async def _keep(self, host: str, session: Message, passed: socket.socket) -> bool:
        """Make a link of a session that was passed; return False if another command was faster."""
        process = ProcessHandle.from_pid(session["pid"])
        streams = await asyncio.open_connection(sock=passed)
        if host in self._links:
            streams[1].close()
            return False
        link = _Link(Multiplexer(streams), process)
        self._links[host] = link
        self._runs[link] = asyncio.create_task(link.run())
        self._runs[link].add_done_callback(lambda _: self._forget(host, link))
        return True

    def _forget(self, host: str, link: _Link) -> None:
        del self._runs[link]
        self._leaving.discard(link)
        if self._links.get(host) is link:
            del self._links[host]
        self._is_due.set()


def _no_descriptors() -> Message:
    """Return the reply that this process cannot open another connection, with the limit."""
    return {"descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}


async def _reply(connection: socket.socket, message: Message) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, _framed(message))


def _framed(message: Message) -> bytes:
    """Return a reply with its header."""
    data = encode(message)
    return REPLY_HEADER.pack(len(data)) + data


async def _receive(connection: socket.socket) -> tuple[bytes, socket.socket | None]:
    """Receive a message, which a command sends at once, and the descriptor that comes with it."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def stop_waiting() -> None:
        loop.remove_reader(connection)
        readable.set_result(None)

    loop.add_reader(connection, stop_waiting)
    try:
        await readable
    finally:
        loop.remove_reader(connection)
    data, descriptors, _, _ = socket.recv_fds(connection, settings.IO_BLOCK_BYTES, 1)
    return data, socket.socket(fileno=descriptors[0]) if descriptors else None
