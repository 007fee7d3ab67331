"""A session on a host: one command there, with which messages are exchanged."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.transport.channel import Channel, readable_fds, set_send_timeout
from tfcluster.transport.children import release_child
from tfcluster.transport.connector import UNUSABLE, Connector, unusable_streams
from tfcluster.transport.errors import HostUnreachableError, clean_lines, no_response, retry_while_busy, with_host
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX
from tfcluster.transport.shell import (
    ENVIRONMENT,
    LOGIN,
    REACHED,
    SHELL,
    STARTUP_FILES,
    environment_hint,
    typed_in_environment,
    typed_path,
)

# The exit codes of every shell for a command that cannot be run or found.
_NOT_RUN = (126, 127)
#: The exit code of a session in which the command of `shell:` failed.
SHELL_FAILED = 125
_PROGRAM = "program"  # what the shells on the way have run


class InterpreterError(ClusterError):
    """A host was reached, but the Python that the spec names for it could not run the bootstrap program."""

    def __init__(self, message: str, *, hint: str, is_missing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_missing = is_missing


class Session:
    """A process with which messages are exchanged over its standard input and output; the caller ends it.

    The process sends each message as a marked line. Other lines, which a login shell may print, are kept for errors.
    """

    def __init__(self, host: Host, connector: Connector, command: list[str]) -> None:
        self.host = host
        self.connector = connector
        self.shipped_bytes = 0
        self._reached: str | None = None  # as the last message says, see `shell.REACHED`; _PROGRAM by another message
        self._awaited = ""  # the shell whose message is awaited, a key of STARTUP_FILES
        self._lines: deque[bytes] = deque()
        self._incomplete_line = b""
        self._output = b""  # the last unmarked lines
        self._received_bytes = 0
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self.connection, process_end = socket.socketpair()
        set_send_timeout(self.connection, settings.REMOTE_REPLY_SECONDS)
        try:
            with process_end:
                self._process = subprocess.Popen(
                    command,
                    stdin=process_end.fileno(),
                    stdout=process_end.fileno(),
                    stderr=self._stderr,  # a file, since what the process has started may keep a pipe open
                    start_new_session=True,  # a Ctrl-C is for the command, which may still send to the host
                )
        except OSError as error:
            self.connection.close()
            self._stderr.close()
            if error.errno == errno.EMFILE:
                raise
            raise connector.not_runnable(error) from error

    def send(self, data: bytes) -> None:
        """Send data to the process. If it has exited, `receive` detects that."""
        try:
            with contextlib.suppress(ConnectionError):
                self.connection.sendall(data)
        except BlockingIOError:  # a command of `connect:` may notice late, or never, that it has lost the host
            raise self._no_response(settings.REMOTE_REPLY_SECONDS) from None

    def await_shell(self, last: str) -> None:
        """Wait until the shells on the way to the program have run, of which `last` is the last one.

        Until then nothing may be sent that their startup files could read.
        """
        self.send(self.connector.first_input)
        self._awaited, seconds = SHELL, settings.SSH_FIRST_MESSAGE_SECONDS
        while self._reached != last:
            self.receive(seconds)
            self._awaited = SHELL if self._reached == LOGIN else ENVIRONMENT
            seconds = min(seconds, settings.SHELL_SECONDS)
        self._awaited = ""

    def receive(self, seconds: float) -> dict[str, Any]:
        """Wait for the next message and return it.

        A HostUnreachableError says that the host was not reached or lost, or that the time is over; another
        ClusterError that the process exited.
        """
        deadline = time.monotonic() + seconds
        while True:
            while not self._lines:
                data = self._incomplete_line + self._receive_bytes(deadline, seconds)
                *lines, self._incomplete_line = data.split(b"\n")
                self._lines.extend(lines)
            line = self._lines.popleft()
            if line.startswith(MESSAGE_PREFIX.encode()):
                message: dict[str, Any] = json.loads(line[len(MESSAGE_PREFIX) :])
                self._reached = message.get(REACHED, _PROGRAM)
                if UNUSABLE in message:
                    raise unusable_streams(self.host, self.connector.program, message[UNUSABLE])
                return message
            self._output = (self._output + line + b"\n")[-settings.SSH_OUTPUT_KEPT_BYTES :]

    def extract_reply(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the reply that a message contains, or raise its error."""
        if "error" in message:
            raise with_host(self.host.name, ClusterError.from_json(message["error"]))
        reply: dict[str, Any] = message["reply"]
        return reply

    def _receive_bytes(self, deadline: float, seconds: float) -> bytes:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not readable_fds([self.connection.fileno()], remaining):
            raise self._no_response(seconds)
        try:
            data = self.connection.recv(settings.IO_BLOCK_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._output += self._incomplete_line
            raise self.exit_error(*self._wait())
        self._received_bytes += len(data)
        if self._received_bytes > settings.SSH_OUTPUT_MAX_BYTES and self._reached != _PROGRAM:
            raise ClusterError(
                f"host {self.host.name!r}: its shell prints without end before anything is run{self.last_output()}",
                hint=f"`{self.connector.typed('true')}` shows it.",
            )
        return data

    def _no_response(self, seconds: float) -> HostUnreachableError:
        if self._awaited and self._reached:
            return self._shell_error(f"has not run a command within {seconds:g} s")
        return no_response(self.host.name, self.connector.typed("true"), seconds, self.last_output())

    def _shell_error(self, problem: str) -> HostUnreachableError:
        shell, files = STARTUP_FILES[self._awaited]
        return HostUnreachableError(
            self.host.name,
            f"{shell} {problem}{self.last_output()}",
            f"A file that it reads there, {files}, starts another shell, waits for input or ends it. Let it do that "
            "only on a terminal, such as `[ -t 0 ] && exec fish`.",
        )

    def last_output(self) -> str:
        """Return the last unmarked lines that were printed, each after a newline; empty if there are none."""
        lines = clean_lines(self._output.decode(errors="replace"))
        return "".join(f"\n  {line}" for line in lines[-settings.SSH_ERROR_LINES :])

    def _wait(self) -> tuple[int | None, str]:
        """Wait a moment for the process, which has closed its output; return its exit code, if any, and its errors."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(settings.SSH_EXIT_SECONDS)
        self._stderr.seek(0)
        return code, self._stderr.read().decode(errors="replace")

    def exit_error(self, code: int | None, stderr: str) -> ClusterError:
        """Return the error for a process that has exited before it sent the expected message."""
        if self.connector.has_failed(code, is_at_shell=self._reached in STARTUP_FILES):
            return self.connector.failure(code, stderr, has_answered=self._reached is not None)
        self._output += stderr.encode()
        if self._awaited:
            return self._shell_error(f"ended with exit code {code} before it ran a command")
        if code == SHELL_FAILED and self.host.shell:
            return InterpreterError(
                f"host {self.host.name!r}: the command `{self.host.shell}` failed{self.last_output()}",
                hint=environment_hint(self.host.shell),
            )
        if code in _NOT_RUN:
            return InterpreterError(
                f"host {self.host.name!r}: there is no {self.host.interpreter} to run{self.last_output()}",
                hint="Set `python:` of this host in the spec to a Python 3.11 or newer there, or `shell:` to a command "
                "that activates one.",
                is_missing=True,
            )
        end = "closed its output" if code is None else f"ended with exit code {code}"
        line = typed_in_environment(f"{typed_path(self.host.interpreter)} -V", self.host.shell)
        return InterpreterError(
            f"host {self.host.name!r}: {self.host.interpreter} {end} before it answered as Python does"
            f"{self.last_output()}",
            hint=f"`{self.connector.typed(line)}` shows whether it is one, of version "
            f"3.11 or newer. If not, correct `python:` of this host in the spec.",
        )

    @property
    def pid(self) -> int:
        """Return the pid of the process, which leads a session of its own."""
        return self._process.pid

    def release(self) -> None:
        """Leave the process to another one, which has its standard streams."""
        self.connection.close()
        self._stderr.close()
        release_child(self._process)

    def end(self) -> None:
        """End the session at once, even if the process is still running."""
        self.connection.close()
        # A process of another user, as after sudo, ends by itself: its input has ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:  # otherwise its pid may be that of another process
                os.killpg(self._process.pid, signal.SIGKILL)  # it may have started others, as an ssh does its proxy
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(settings.SSH_EXIT_SECONDS)
        self._stderr.close()


def open_session(host: Host, connector: Connector, command: str, *, last_shell: str = SHELL) -> Session:
    """Start a session on a host, which the caller ends; the shells there have run, and the command begins.

    See `CommandConnector.session_argv` and `Session.await_shell`.
    """

    def connect() -> Session:
        with connector.login():
            session = Session(host, connector, connector.session_argv(command))
            try:
                session.await_shell(last_shell)
            except BaseException:
                session.end()
                raise
            return session

    return retry_while_busy(connect)


class RemoteChannel(Channel):
    """A connection to an agent on another host, which a link carries."""

    def __init__(
        self,
        connection: socket.socket,
        host: str,
        pid: int,
        has_lost_host: Callable[[], bool],
        typed: Callable[[str], str],
    ) -> None:
        super().__init__(connection)
        self.pid = pid
        self._host = host
        self._typed = typed  # returns what a user types to run a command on the host
        self._has_lost_host = has_lost_host  # whether the connection to the host has ended, as far as it is known

    def timeout_error(self, duration: str) -> ClusterError:
        """See `Channel.timeout_error`."""
        return HostUnreachableError(
            self._host,
            f"the agent there (pid {self.pid}) has not answered within {duration}",
            f"If the host is busy, try again. If a signal has stopped the agent, `{self._kill('-CONT')}` continues it. "
            f"If it hangs, `{self._kill('-9')}`: the tasks continue, and the next command starts another agent.",
        )

    def _kill(self, signal: str) -> str:
        return self._typed(f"kill {signal} {self.pid}")

    def wait_for_end(self, timeout: float) -> bool:
        """See `Channel.wait_for_end`."""
        has_ended = super().wait_for_end(timeout)
        if has_ended and self._has_lost_host():
            raise HostUnreachableError(self._host, "the connection broke before its agent had ended", "Try again.")
        return has_ended
