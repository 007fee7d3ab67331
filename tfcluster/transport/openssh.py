"""Sessions of the user's own OpenSSH client, multiplexed over one connection per host; ~/.ssh/config is respected."""

from __future__ import annotations

import contextlib
import json
import select
import shlex
import socket
import subprocess
import tempfile
import time
from collections import deque
from typing import Any

from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.runtime_dir import ssh_control_path
from tfcluster.transport.base import HostUnreachableError
from tfcluster.transport.remote_bootstrap import MARK
from tfcluster.transport.ssh_errors import SSH_FAILED, lines_of, unreachable


class InterpreterError(ClusterError):
    """A host was reached, but the Python that the spec names for it could not run the bootstrap program.

    Attributes:
        is_missing: The Python does not exist on the host.
    """

    def __init__(self, message: str, *, hint: str, is_missing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_missing = is_missing


def _ssh(cluster: str, host: Host, *more: str, shared: bool = True) -> list[str]:
    """Return the first words of every ssh command line: the options for use without a terminal and for multiplexing.

    Args:
        cluster: The cluster's name.
        host: The host.
        *more: Further options.
        shared: Use the connection that commands share, and create it if necessary. If false, use a connection that
            ends with the session and leaves nothing behind on this machine.

    Raises:
        ClusterError: There is no private folder for the control socket.
    """
    if shared:
        sharing: dict[str, object] = {
            "ControlMaster": "auto",
            "ControlPersist": settings.SSH_PERSIST_SECONDS,
            "ControlPath": ssh_control_path(cluster, host.destination),
        }
    else:
        sharing = {"ControlMaster": "no", "ControlPersist": "no", "ControlPath": "none"}
    options = {
        "BatchMode": "yes",  # ssh must not ask for a password: there is no terminal
        "LogLevel": "ERROR",  # suppresses the banner, but not the errors
        "RemoteCommand": "none",
        "ClearAllForwardings": "yes",
        "ConnectTimeout": settings.SSH_CONNECT_SECONDS,
        "ServerAliveInterval": settings.SSH_KEEPALIVE_SECONDS,
        "ServerAliveCountMax": settings.SSH_KEEPALIVE_PROBES,
        **sharing,
    }
    words = (word for name, value in options.items() for word in ("-o", f"{name}={value}"))
    return ["ssh", "-T", *words, *more, "--", host.destination]


def disconnect(cluster: str, host: Host) -> None:
    """Close the shared connection to a host, if there is one, as soon as its last session has ended."""
    with contextlib.suppress(ClusterError, OSError, subprocess.TimeoutExpired):
        if not ssh_control_path(cluster, host.destination).exists():
            return
        subprocess.run(
            _ssh(cluster, host, "-O", "stop"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=settings.SSH_EXIT_SECONDS,
            check=False,
        )


class SshSession:
    """A session that runs one command on a host and reads the messages that it prints as marked lines.

    The caller ends the session with `finish` or `end`.

    Args:
        cluster: The name of the cluster, whose commands share a connection.
        host: The host.
        command: A command line for the host's shell.
        shared: Use the connection that commands share. If false, use a separate connection, which ends with the
            session.

    Attributes:
        host: The host.
        connection: The socket that is connected to the command's standard input and output.
        shipped_bytes: The size of the code bundle that was sent in this session, in bytes; 0 if none was sent.

    Raises:
        ClusterError: ssh is not installed on this machine, or there is no private folder for the control socket.
    """

    def __init__(self, cluster: str, host: Host, command: str, *, shared: bool = True) -> None:
        self._start(host, [*_ssh(cluster, host, shared=shared), command])

    def _start(self, host: Host, command: list[str]) -> None:
        """Start the local process of the session.

        Args:
            host: The host.
            command: The command line of the process.

        Raises:
            ClusterError: The process cannot be started.
        """
        self.host = host
        self._heard = False  # whether a marked line has arrived
        self.shipped_bytes = 0
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._noise = b""
        self._noise_bytes = 0
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self.connection, theirs = socket.socketpair()
        try:
            with theirs:
                self._ssh = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._words,  # a file, since the shared connection's process may keep a pipe open
                    start_new_session=True,  # a Ctrl-C is for the command, which may still send to the host
                )
        except OSError as error:
            self.connection.close()
            self._words.close()
            raise ClusterError(
                f"cannot run {command[0]}: {error.strerror}", hint="Install OpenSSH's client."
            ) from error

    def say(self, data: bytes) -> None:
        """Send data to the command. If the command has exited, that is detected when its answer is read."""
        with contextlib.suppress(ConnectionError):
            self.connection.sendall(data)

    def hear(self, seconds: float) -> dict[str, Any]:
        """Read the next message, which is a marked line of the command's output.

        Args:
            seconds: The timeout in seconds.

        Returns:
            The decoded message.

        Raises:
            HostUnreachableError: ssh failed, or the timeout expired.
            ClusterError: The command exited.
        """
        deadline = time.monotonic() + seconds
        while True:
            while not self._lines:
                *lines, self._rest = (self._rest + self._receive(deadline, seconds)).split(b"\n")
                self._lines.extend(lines)
            line = self._lines.popleft()
            if line.startswith(MARK.encode()):
                self._heard = True
                said: dict[str, Any] = json.loads(line[len(MARK) :])
                return said
            self._noise = (self._noise + line + b"\n")[-settings.SSH_NOISE_KEPT_BYTES :]

    def _receive(self, deadline: float, seconds: float) -> bytes:
        if not select.select([self.connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise HostUnreachableError(
                self.host.name,
                f"nothing has come from it within {seconds:g} s{self.noise()}",
                f"`ssh {shlex.quote(self.host.destination)} true` tells whether it answers.",
            )
        try:
            data = self.connection.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._noise += self._rest
            raise self._failure()
        self._noise_bytes += len(data)
        if self._noise_bytes > settings.SSH_NOISE_MAX_BYTES and not self._heard:
            raise ClusterError(
                f"host {self.host.name!r}: its shell prints without end before anything is run{self.noise()}",
                hint=f"`ssh {shlex.quote(self.host.destination)} true` shows it.",
            )
        return data

    def noise(self) -> str:
        """Return the last unmarked lines that the command or its shell printed; empty if there are none."""
        lines = lines_of(self._noise.decode(errors="replace"))
        return "".join(f"\n  {line}" for line in lines[-settings.SSH_ERROR_LINES :])

    def _ended(self) -> tuple[int, str]:
        """Wait a moment for the local process of the session, which has closed its output, to exit.

        Returns:
            The exit code of the process, and its standard error. If the process has not exited, the exit code is that
            of an ssh that failed.
        """
        try:
            code = self._ssh.wait(settings.SSH_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = SSH_FAILED
        self._words.seek(0)
        return code, self._words.read().decode(errors="replace")

    def _failure(self) -> ClusterError:
        """Return the error that explains why the session has ended."""
        code, words = self._ended()
        if code == SSH_FAILED:
            return unreachable(self.host, words)
        self._noise += words.encode()
        if code in (126, 127):  # the exit codes of every shell for a command that cannot be run or found
            return InterpreterError(
                f"host {self.host.name!r}: there is no {self.host.interpreter} to run{self.noise()}",
                hint="Name its Python 3.10 or newer by `python:` in the spec.",
                is_missing=True,
            )
        return InterpreterError(
            f"host {self.host.name!r}: ssh ended with exit code {code} before the host had answered{self.noise()}",
            hint=f"`ssh {shlex.quote(self.host.destination)} true` tells whether commands can be run there.",
        )

    def finish(self) -> None:
        """Close the command's standard input, wait a moment for the command to exit, and end the session."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.connection.shutdown(socket.SHUT_WR)
            self._ssh.wait(settings.SSH_EXIT_SECONDS)
        self.end()

    def end(self) -> None:
        """End the session at once, even if the command is still running."""
        self.connection.close()
        self._ssh.kill()
        self._ssh.wait()
        self._words.close()
