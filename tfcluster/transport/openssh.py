"""Sessions of the user's own ssh, which share one connection to a host; whatever ~/.ssh/config says holds."""

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

from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError
from tfcluster.paths import ssh_control_path
from tfcluster.transport.base import HostUnreachableError
from tfcluster.transport.remote_bootstrap import MARK
from tfcluster.transport.ssh_errors import SSH_FAILED, lines_of, unreachable

#: Seconds for the first sign of life of a session: connecting, a login shell, the start of Python.
FIRST_SECONDS = 20.0
_CONNECT_SECONDS = 8
# A connection over which nothing has come for so long is asked, so often, before it is given up.
_ALIVE_SECONDS, _ALIVE_COUNT = 5, 3
# So long the connection is kept for the next command.
_PERSIST_SECONDS = 300
_EXIT_SECONDS = 5.0
# So much of what a login shell prints is kept, to be shown if nothing else comes, and so much is borne.
_KEPT_NOISE, _NOISE_LIMIT = 4096, 1 << 20
_LAST_LINES = 8


class InterpreterError(ClusterError):
    """A host was reached, and the Python that is named for it does not run what it is to run.

    Attributes:
        is_missing: There is no such program.
    """

    def __init__(self, message: str, *, hint: str, is_missing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_missing = is_missing


def _ssh(cluster: str, host: Host, *more: str, shared: bool = True) -> list[str]:
    """The beginning of every ssh's command line: what one without a terminal needs, and the shared connection.

    Args:
        cluster: The cluster's name.
        host: The host.
        *more: Further options.
        shared: Use, or make, the connection that commands share; else one that ends with the session, of which
            nothing is left on this machine.

    Raises:
        ClusterError: There is no private folder for the connection's socket.
    """
    if shared:
        sharing: dict[str, object] = {
            "ControlMaster": "auto",
            "ControlPersist": _PERSIST_SECONDS,
            "ControlPath": ssh_control_path(cluster, host.destination),
        }
    else:
        sharing = {"ControlMaster": "no", "ControlPersist": "no", "ControlPath": "none"}
    options = {
        "BatchMode": "yes",  # nobody is there to answer
        "LogLevel": "ERROR",  # no banner, and no silence
        "RemoteCommand": "none",
        "ClearAllForwardings": "yes",
        "ConnectTimeout": _CONNECT_SECONDS,
        "ServerAliveInterval": _ALIVE_SECONDS,
        "ServerAliveCountMax": _ALIVE_COUNT,
        **sharing,
    }
    words = (word for name, value in options.items() for word in ("-o", f"{name}={value}"))
    return ["ssh", "-T", *words, *more, "--", host.destination]


def disconnect(cluster: str, host: Host) -> None:
    """End the shared connection to a host, if there is one, as soon as no session is on it any more."""
    with contextlib.suppress(ClusterError, OSError, subprocess.TimeoutExpired):
        if not ssh_control_path(cluster, host.destination).exists():
            return
        subprocess.run(
            _ssh(cluster, host, "-O", "stop"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_EXIT_SECONDS,
            check=False,
        )


class SshSession:
    """One command on a host, which says marked lines; to be ended.

    Args:
        cluster: The cluster, whose commands share a connection.
        host: The host.
        command: A command line for its shell.
        shared: Over the connection that commands share; else over one of its own, which ends with it.

    Raises:
        ClusterError: There is no ssh on this machine, or no private folder for its socket.
    """

    def __init__(self, cluster: str, host: Host, command: str, *, shared: bool = True) -> None:
        self._start(host, [*_ssh(cluster, host, shared=shared), command])

    def _start(self, host: Host, command: list[str]) -> None:
        """Start the process that is talked to.

        Args:
            host: The host.
            command: Its command line.
        """
        self.host = host
        self._heard = False  # whether a marked line has come
        self.shipped_bytes = 0
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._noise = b""
        self._noise_bytes = 0
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed in the end
        self.connection, theirs = socket.socketpair()
        try:
            with theirs:
                self._ssh = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._words,  # a file: the shared connection's process may keep it open
                    start_new_session=True,  # a Ctrl-C is for the command, which may have more to say to the host
                )
        except OSError as error:
            self.connection.close()
            self._words.close()
            raise ClusterError(
                f"cannot run {command[0]}: {error.strerror}", hint="Install OpenSSH's client."
            ) from error

    def say(self, data: bytes) -> None:
        """Say something to the command; that it has ended shows itself when its answer is read."""
        with contextlib.suppress(ConnectionError):
            self.connection.sendall(data)

    def hear(self, seconds: float) -> dict[str, Any]:
        """The next marked line of the command.

        Args:
            seconds: How long to wait for it.

        Raises:
            HostUnreachableError: ssh failed, or nothing has come in time.
            ClusterError: The command ended.
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
            self._noise = (self._noise + line + b"\n")[-_KEPT_NOISE:]

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
        if self._noise_bytes > _NOISE_LIMIT and not self._heard:
            raise ClusterError(
                f"host {self.host.name!r}: its shell prints without end before anything is run{self.noise()}",
                hint=f"`ssh {shlex.quote(self.host.destination)} true` shows it.",
            )
        return data

    def noise(self) -> str:
        """The last lines that the command, or the shell in which it runs, printed besides; empty if none."""
        lines = lines_of(self._noise.decode(errors="replace"))
        return "".join(f"\n  {line}" for line in lines[-_LAST_LINES:])

    def _ended(self) -> tuple[int, str]:
        """Wait a moment for the process that is talked to, which has hung up.

        Returns:
            Its exit code, that of an ssh that failed where it has not ended, and what it printed as errors.
        """
        try:
            code = self._ssh.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = SSH_FAILED
        self._words.seek(0)
        return code, self._words.read().decode(errors="replace")

    def _failure(self) -> ClusterError:
        """Why a session that has ended did so."""
        code, words = self._ended()
        if code == SSH_FAILED:
            return unreachable(self.host, words)
        self._noise += words.encode()
        if code in (126, 127):  # as every shell says that there is no such command
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
        """Hang up, and wait a moment for the end of a command that ends then."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.connection.shutdown(socket.SHUT_WR)
            self._ssh.wait(_EXIT_SECONDS)
        self.end()

    def end(self) -> None:
        """Hang up, whatever the command still does."""
        self.connection.close()
        self._ssh.kill()
        self._ssh.wait()
        self._words.close()
