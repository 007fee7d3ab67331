"""Forking the agent's children: each with a socket to the agent and a pidfd that tells of its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import traceback
from collections.abc import Callable

from tfcluster.process import ProcessId, send
from tfcluster.protocol.framing import Decoder, Message


class Child:
    """One forked process.

    Attributes:
        process: Its pid and start time.
        link: The agent's end of the socket pair.
    """

    def __init__(self, process: ProcessId, link: socket.socket) -> None:
        self.process = process
        self.link = link

    def kill(self) -> None:
        """End it at once and wait for that, so that nothing of the agent is left when the agent ends."""
        pidfd = self.process.open()
        if pidfd is not None:
            send(pidfd, signal.SIGKILL)
            os.close(pidfd)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.process.pid, 0)


def fork(body: Callable[[socket.socket], None]) -> Child:
    """Fork a process that runs `body` with its end of a socket pair, and ends with exit code 1 when it returns.

    The agent has one thread, so the fork is a full copy in which nothing else goes on.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            body(theirs)
        except BaseException:  # nothing may unwind into the agent's event loop
            traceback.print_exc()
        finally:
            os._exit(1)
    theirs.close()
    ours.setblocking(False)
    process = ProcessId.of(pid)
    # An unreaped child keeps its pid; one that ended within microseconds shows as a zombie without a start time.
    return Child(process or ProcessId(pid, 0), ours)


def read_messages(link: socket.socket, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
    """Have the event loop hand over each message from a child, and tell when the child hung up."""
    decoder = Decoder()
    loop = asyncio.get_running_loop()

    def readable() -> None:
        try:
            data = link.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if data:
            for message in decoder.feed(data):
                on_message(message)
            return
        loop.remove_reader(link)
        link.close()
        on_end()

    loop.add_reader(link, readable)


def when_ended(process: ProcessId, ended: Callable[[int | None], None]) -> int | None:
    """Have the event loop call `ended` with waitpid's status once a process has ended.

    Returns:
        The process's pidfd, to signal it by, valid until `ended` is called; None when it was gone already (then
        `ended` is called all the same, later). The status is None for a process that is not a child.
    """
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        loop.call_soon(lambda: ended(None))
        return None
    if process.start_time and not process.alive() and not _is_unreaped_child(process.pid):
        os.close(pidfd)
        loop.call_soon(lambda: ended(None))
        return None

    def readable() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        ended(_reap(process.pid))

    loop.add_reader(pidfd, readable)
    return pidfd


def _is_unreaped_child(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _reap(pid: int) -> int | None:
    """The status of an ended child; None when it is somebody else's child."""
    try:
        return os.waitpid(pid, os.WNOHANG)[1]
    except ChildProcessError:
        return None
