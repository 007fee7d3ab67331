"""Forking the agent's children: each with a socket to the agent and a pidfd that tells of its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import traceback
from collections.abc import Callable

from tfcluster.process_handle import ProcessHandle, exit_status, send
from tfcluster.processes.daemonize import close_fds
from tfcluster.protocol.codec import Decoder, Message, encode


class ChildProcess:
    """One forked process.

    Attributes:
        process: Its pid and start time.
        pidfd: Its pidfd, to signal it by; None once it has ended.
    """

    def __init__(self, process: ProcessHandle, pidfd: int, link: socket.socket) -> None:
        self.process = process
        self.pidfd: int | None = pidfd
        self._link = link
        self._unsent = bytearray()

    def send(self, message: Message) -> None:
        """Send a line; what the child does not take at once goes as it reads. Nothing happens when it has ended."""
        waiting = bool(self._unsent)
        self._unsent += encode(message)
        if not waiting:
            self._write()

    def on_message(self, received: Callable[[Message], None], ended: Callable[[], None]) -> None:
        """Have the event loop hand over each line from the child, and tell when it hung up."""
        decoder = Decoder()
        loop = asyncio.get_running_loop()

        def readable() -> None:
            try:
                data = self._link.recv(1 << 16)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if data:
                for message in decoder.feed(data):
                    received(message)
                return
            self.hang_up()
            ended()

        loop.add_reader(self._link, readable)

    def hang_up(self) -> None:
        """Close the socket to the child, which reads its end."""
        if self._link.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._link)
            loop.remove_writer(self._link)
            self._link.close()

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, as SIGSTOP does."""
        if self.pidfd is None:
            return False
        try:
            return os.waitid(os.P_PIDFD, self.pidfd, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it has ended, and the event loop is about to tell
            return False

    def kill(self) -> None:
        """End it at once."""
        if self.pidfd is not None:
            send(self.pidfd, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for its end, of which nobody is told then."""
        if self.pidfd is not None:
            asyncio.get_running_loop().remove_reader(self.pidfd)
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
            os.close(self.pidfd)
            self.pidfd = None

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            sent = self._link.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # it has ended, and the reader will tell
            self._unsent.clear()
            sent = 0
        del self._unsent[:sent]
        if self._unsent:
            loop.add_writer(self._link, self._write)
        elif self._link.fileno() >= 0:
            loop.remove_writer(self._link)


def fork_child(body: Callable[[socket.socket], None], ended: Callable[[int], None]) -> ChildProcess:
    """Fork a process that runs `body` with its end of a socket pair, and ends with exit code 1 when it returns.

    The agent has one thread, so the fork is a full copy in which nothing else goes on. The child lets go of all the
    agent's descriptors at once: sockets whose end others wait for, held ports, the lock.

    Args:
        body: What it does.
        ended: Called by the event loop with waitpid's status once it has ended.

    Raises:
        OSError: The system has no process, memory or descriptors left for it; there is none then.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            raise
        if pid == 0:
            try:
                close_fds({0, 1, 2, theirs.fileno()})
                with contextlib.suppress(ConnectionError):  # the agent died with something unread: no news to anybody
                    body(theirs)
            except BaseException:  # nothing may unwind into the agent's event loop
                traceback.print_exc()
            finally:
                os._exit(1)
    ours.setblocking(False)
    pidfd = None
    try:
        pidfd = os.pidfd_open(pid)
        process = ProcessHandle.of(pid)
        assert process is not None, "a child that is not reaped has its pid"
        child = ChildProcess(process, pidfd, ours)

        def told(status: int | None) -> None:
            assert status is not None, "it is our own child"
            child.pidfd = None
            ended(status)

        _watch(process, pidfd, told)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # nobody has reaped it, so the pid is its own
        os.waitpid(pid, 0)
        ours.close()
        if pidfd is not None:
            os.close(pidfd)
        raise
    return child


def when_ended(process: ProcessHandle, ended: Callable[[int | None], None]) -> int | None:
    """Have the event loop call `ended` with waitpid's status once a process that is no child has ended.

    Returns:
        The process's pidfd, to signal it by, valid until `ended` is called; None when it was gone already (then
        `ended` is called all the same, later, with None). See `exit_status` for when the status is None.

    Raises:
        OSError: There is no descriptor left to watch it by.
    """
    pidfd = process.open()
    if pidfd is None:
        asyncio.get_running_loop().call_soon(ended, None)
    else:
        _watch(process, pidfd, ended)
    return pidfd


def _watch(process: ProcessHandle, pidfd: int, ended: Callable[[int | None], None]) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        loop.remove_reader(pidfd)
        status = exit_status(process, pidfd)
        os.close(pidfd)
        ended(status)

    loop.add_reader(pidfd, readable)
