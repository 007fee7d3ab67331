"""Fork and watch the agent's child processes: each has a socket pair to the agent, and a pidfd signals its exit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tfcluster import settings
from tfcluster.agent.event_loop import Timer
from tfcluster.core.text import summarize_list
from tfcluster.errors import ClusterError
from tfcluster.os import libc
from tfcluster.os.daemonize import close_fds, detach, outlive_parent
from tfcluster.os.process_handle import ProcessHandle, exit_status, send_signal
from tfcluster.protocol.codec import Decoder, Message, encode

# The signals for which the agent's event loop has handlers.
_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, settings.HOST_END_SIGNAL)
# What a child process runs; the argument is its end of the connection to the agent.
_Body = Callable[[socket.socket], None]


def survivors_error(names: Sequence[str], cluster: str) -> ClusterError:
    """Return the error for processes that SIGKILL has not ended."""
    return ClusterError(
        f"{summarize_list(names)} of cluster {cluster!r}: still running {settings.KILL_SECONDS:g} s after SIGKILL",
        hint="The kernel might be waiting for a disk or a device on their behalf: `cat /proc/PID/stack` shows it. "
        "Then type `tfcluster down` again.",
    )


class ChildProcess:
    """A forked child process with a connection to it; `pidfd` is None after it has exited."""

    def __init__(self, process: ProcessHandle, pidfd: int, link: socket.socket) -> None:
        self.process = process
        self.pidfd: int | None = pidfd
        self._link = link
        self._unsent = bytearray()

    def send(self, message: Message) -> None:
        """Send a message to the child without blocking.

        The event loop sends later what the child does not receive at once. Does nothing if the child has exited.
        """
        waiting = bool(self._unsent)
        self._unsent += encode(message)
        if not waiting:
            self._write()

    def on_message(self, received: Callable[[Message], None], on_close: Callable[[], None]) -> None:
        """Have the event loop call `received` for each message, and `on_close` when the connection is closed."""
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
            self.close_pipe()
            on_close()

        loop.add_reader(self._link, readable)

    async def receive(self) -> bytes:
        """Return what the child sends next, b"" at the end, instead of `on_message`: a child that sends more waits."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.get_running_loop().sock_recv(self._link, 1 << 16)
        return b""

    def close_pipe(self) -> None:
        """Close the socket to the child, which then reads the end of file."""
        if self._link.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._link)
            loop.remove_writer(self._link)
            self._link.close()

    def is_stopped(self) -> bool:
        """Return whether a signal such as SIGSTOP has stopped the child."""
        if self.pidfd is None:
            return False
        try:
            return os.waitid(libc.P_PIDFD, self.pidfd, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the child has exited, and the event loop is about to call its callback
            return False

    def kill(self) -> None:
        """Send SIGKILL to the child."""
        if self.pidfd is not None:
            send_signal(self.pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until the child has exited, without calling the callback for its exit."""
        if self.pidfd is not None:
            asyncio.get_running_loop().remove_reader(self.pidfd)
            os.waitid(libc.P_PIDFD, self.pidfd, os.WEXITED)
            os.close(self.pidfd)
            self.pidfd = None

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            size = self._link.send(self._unsent)
        except BlockingIOError:
            size = 0
        except OSError:  # the child has exited; the reader reports it
            self._unsent.clear()
            size = 0
        del self._unsent[:size]
        if self._unsent:
            loop.add_writer(self._link, self._write)
        elif self._link.fileno() >= 0:
            loop.remove_writer(self._link)


def fork_child(
    body: _Body, on_exit: Callable[[int], None], enter: Callable[[], None] | None = None, keep: Iterable[int] = ()
) -> ChildProcess:
    """Fork a child process that runs a function and exits with code 1 if the function returns.

    The agent has a single thread, so the child is a complete copy of it in which nothing else runs. The child first
    closes all descriptors of the agent: sockets whose end of file other processes wait for, reserved ports, the lock.

    Args:
        body: The function that the child runs; its argument is the child's end of a socket pair.
        on_exit: Called by the event loop with waitpid's status when the child has exited.
        enter: Called in the child before it closes the agent's descriptors, to move it to another network.
        keep: The descriptors of the agent that the child does not close.

    Raises OSError: The system has no process, memory or file descriptors left; no child is left behind.
    """
    agent_end, child_end = socket.socketpair()
    with child_end:
        try:
            pid = _fork()
        except OSError:
            agent_end.close()
            raise
        if pid == 0:
            _run_child(body, child_end, enter, keep)
    agent_end.setblocking(False)
    pidfd = None
    try:
        pidfd = libc.pidfd_open(pid)
        process = ProcessHandle.from_pid(pid)
        assert process is not None, "a child that is not reaped has its pid"
        child = ChildProcess(process, pidfd, agent_end)

        def handle_exit(status: int | None) -> None:
            assert status is not None, "the agent is the parent"
            child.pidfd = None
            on_exit(status)

        _watch(process, pidfd, handle_exit)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # the child is not reaped yet, so its pid cannot have been reused
        os.waitpid(pid, 0)
        agent_end.close()
        if pidfd is not None:
            os.close(pidfd)
        raise
    return child


class ChildTimeoutError(ClusterError):
    """Raised when a child process takes too long."""


async def run_in_child(
    title: str, function: Callable[[], Any], timeout: float, enter: Callable[[], None] | None = None
) -> Any:
    """Run a function that may block, and may start threads, in a child process of its own.

    Returns what the function returns, which must be a JSON value. Raises ClusterError if the function raises one or an
    OSError, if no process can be started, or if it died; ChildTimeoutError if it was killed after `timeout` seconds.
    `title` is the title of the process, which `ps` shows. For `enter` see `fork_child`.
    """
    agent_pid = os.getpid()
    result: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def body(agent: socket.socket) -> None:
        detach(title, keep=[agent.fileno()], parent=agent_pid)
        try:
            message = {"result": function()}
        except ClusterError as error:
            message = {"error": error.to_json()}
        except OSError as error:
            message = {"error": ClusterError(str(error)).to_json()}
        agent.sendall(encode(message))

    def set_result(message: Message) -> None:
        if not result.done():
            result.set_result(message)

    died = ClusterError(f"the process {title!r} died", hint="Try again.")
    try:
        child = fork_child(body, lambda status: None, enter)
    except OSError as error:
        raise ClusterError(f"the process {title!r} cannot be started: {error.strerror}") from error
    child.on_message(set_result, lambda: set_result({"error": died.to_json()}))
    try:
        async with asyncio.timeout(timeout):
            message = await result
    except TimeoutError:
        raise ChildTimeoutError(f"the process {title!r} took longer than {timeout:g} s", hint="Try again.") from None
    finally:
        child.kill()
        child.close_pipe()
    if "error" in message:
        raise ClusterError.from_json(message["error"])
    return message["result"]


def _run_child(
    body: _Body, connection: socket.socket, enter: Callable[[], None] | None, keep: Iterable[int]
) -> NoReturn:
    """Run the function of a child process that was just forked, and exit."""
    try:
        if enter is not None:
            enter()
        close_fds({0, 1, 2, connection.fileno(), *keep})
        gc.enable()
        with contextlib.suppress(ConnectionError):  # the agent died with unread data: nothing to report
            body(connection)
    except BaseException:  # no exception may reach the copy of the agent's event loop
        traceback.print_exc()
    finally:
        os._exit(1)


def _fork() -> int:
    """Fork; the child has no garbage collector and none of the agent's signal handlers.

    The child closes the agent's descriptors by their numbers, while the agent's objects (sockets, streams) still refer
    to these. A garbage collection in the child that destroyed such an object would close whatever has its number by
    then. Therefore no collection runs between the fork and `gc.freeze`, which exempts these objects for good.

    The agent's signal handlers only write to the descriptor that wakes its event loop, and the child shares it. Until
    the child has the default handlers, the signals are blocked; then those that have arrived take effect.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    pid = -1
    try:
        pid = os.fork()
        if pid == 0:
            gc.freeze()
            signal.set_wakeup_fd(-1)
            for number in _HANDLED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if was_enabled and pid != 0:
            gc.enable()
    return pid


def watch_exit(process: ProcessHandle, on_exit: Callable[[int | None], None]) -> int | None:
    """Register a callback with the event loop for the exit of a process that is not a child of the agent.

    It is called with waitpid's status; see `exit_status` for when that is None. Raises OSError if no file descriptor is
    left to watch the process.

    Returns:
        The process's pidfd, to send signals with, valid until `on_exit` is called. None if the process had exited
        already; `on_exit` is called later with None in this case too.
    """
    pidfd = process.open()
    if pidfd is None:
        asyncio.get_running_loop().call_soon(on_exit, None)
    else:
        _watch(process, pidfd, on_exit)
    return pidfd


def _watch(process: ProcessHandle, pidfd: int, on_exit: Callable[[int | None], None]) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        loop.remove_reader(pidfd)
        status = exit_status(process, pidfd)
        os.close(pidfd)
        on_exit(status)

    loop.add_reader(pidfd, readable)


class HelperProcess:
    """Has at most one process at a time. A subclass says what the process does, and how the agent reacts to it.

    `title` is that of the process, and `output` the file for its standard output and standard error; None for those of
    the agent.
    """

    outlives_agent = False  # whether the process outlives the agent; it does not begin its work before `release`
    restarts = False  # whether the process is started again some time after it has exited

    def __init__(self, title: str, output: Path | None = None) -> None:
        self.title = title
        self.process: ProcessHandle | None = None  # the process; None if there is none
        self._output = output
        self._child: ChildProcess | None = None  # the process, if this agent has forked it
        self._pidfd: int | None = None  # of a process that an earlier agent has forked
        self._is_released = False
        self._timer = Timer()

    def run(self, agent: socket.socket) -> None:
        """Do the work, in the process; `agent` is the connection to the agent."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the process, in it, as long as it has the descriptors of the agent."""

    def handle_start(self) -> None:
        """React to the start of the process."""

    def handle_message(self, message: Message) -> None:
        """React to a message of the process."""

    def handle_exit(self) -> None:
        """React to the exit of the process, unless `stop` has ended it."""

    def ensure_started(self) -> None:
        """Fork the process unless there is one.

        Raises OSError: it cannot be forked.
        """
        if self.process is not None:
            return
        agent_pid = os.getpid()

        def body(agent: socket.socket) -> None:
            detach(self.title, log=self._output, keep=[agent.fileno()], parent=agent_pid)
            if self.outlives_agent:
                if not agent.recv(settings.IO_BLOCK_BYTES):
                    return  # no later agent would find this process
                outlive_parent()
            self.run(agent)

        child = fork_child(body, lambda status: None, self.prepare)
        self._child, self.process, self._is_released = child, child.process, False
        # The process has its end of the connection until it exits, and its last messages come before the end.
        child.on_message(self.handle_message, partial(self._handle_end, child.process))
        self.handle_start()

    def start_or_retry(self) -> None:
        """Fork the process unless there is one, and if that fails, try again after a time."""
        self._timer.cancel()
        try:
            self.ensure_started()
        except OSError:  # no process, memory or descriptor is left
            self.start_later(settings.HELPER_RESTART_SECONDS)

    def start_later(self, seconds: float) -> None:
        """Do `start_or_retry` after some time, in the event loop."""
        self._timer.set(seconds, self.start_or_retry)

    def watch(self, process: ProcessHandle) -> None:
        """Adopt a process that an earlier agent has forked.

        Raises OSError: no descriptor is left to watch it.
        """
        self._pidfd = watch_exit(process, lambda status: self._handle_end(process))
        self.process = process

    def release(self) -> None:
        """Let a process begin that outlives the agent, as the next agent will find it."""
        if self._child is not None and not self._is_released:
            self._is_released = True
            self._child.send({})

    def send(self, message: Message) -> None:
        """Send a message to the process, which is forked first if there is none; see `ensure_started`."""
        self.ensure_started()
        assert self._child is not None, "no process that takes messages outlives its agent"
        self._child.send(message)

    def signal(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        pidfd = self._pidfd if self._child is None else self._child.pidfd
        if pidfd is not None:
            send_signal(pidfd, number)

    def kill(self) -> None:
        """Kill the process, if there is one."""
        self.signal(signal.SIGKILL)

    def kill_if_stopped(self) -> int | None:
        """Kill the process if a signal such as SIGSTOP has stopped it; return its pid in this case."""
        if self._child is None or not self._child.is_stopped():
            return None
        self.kill()
        return self._child.process.pid

    def stop(self) -> None:
        """Kill the process, and wait until it has exited if this agent has forked it; it is not started again."""
        self._timer.cancel()
        self.kill()
        child = self._child
        self._forget()
        if child is not None:
            child.wait()
            child.close_pipe()

    def _handle_end(self, process: ProcessHandle) -> None:
        if self.process != process:  # `stop` has ended it
            return
        self._forget()
        self.handle_exit()
        if self.restarts:
            self.start_later(settings.HELPER_RESTART_SECONDS)

    def _forget(self) -> None:
        self.process = self._child = self._pidfd = None
