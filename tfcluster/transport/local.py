"""Reaching an agent on this machine: its Unix socket, and starting it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.places import socket_path
from tfcluster.protocol.framing import Decoder

# The agent runs the very code that starts it, whether or not that is installed. It is put behind everything
# else on the path, and the current directory is not on it: a stray json.py there must not end up in an agent.
_PROGRAM = (
    "import sys; sys.path[0:1] = []; sys.path.append(sys.argv[1]); "
    "from tfcluster.agent.daemon import main; main(sys.argv[2])"
)
_PACKAGE_ROOT = Path(__file__).parent.parent.parent


class Agent:
    """A connection to a cluster's agent on this machine, for one request."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        size = struct.calcsize("3i")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        self._pid, uid, _ = struct.unpack("3i", credentials)
        if uid != os.getuid():
            connection.close()
            raise ClusterError("the agent's socket belongs to another user")

    def send(self, data: bytes) -> None:
        """Send the request; an agent that has gone shows itself when its answer is read."""
        with contextlib.suppress(ConnectionError):
            self._connection.sendall(data)

    def receive(self) -> bytes:
        """What has arrived, waiting for something; nothing when the agent hung up or died."""
        try:
            return self._connection.recv(1 << 16)
        except ConnectionError:
            return b""

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def wait_for_end(self, timeout: float | None) -> None:
        """Return when the agent's process has ended, or after `timeout` seconds."""
        try:
            pidfd = os.pidfd_open(self._pid)
        except OSError:
            return
        select.select([pidfd], [], [], timeout)
        os.close(pidfd)


def connect(cluster: str) -> Agent | None:
    """Connect to the agent of a cluster; None when there is none that listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(socket_path(cluster)))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise ClusterError(
            f"{socket_path(cluster)}: cannot reach the agent: {error.strerror}",
            exit_code=ExitCode.UNREACHABLE,
        ) from error
    return Agent(connection)


def start(cluster: str) -> None:
    """Start the agent of a cluster, or find that another command has; returns when its socket is there.

    Raises:
        ClusterError: The agent could not start, with its own words.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(_PACKAGE_ROOT), cluster],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C for the command is not for the cluster
    )
    assert process.stdout is not None, "it is a pipe"
    with process.stdout:
        line = process.stdout.readline()
    if not line:
        raise ClusterError(f"the agent ended before it listened (exit code {process.wait()})")
    message = Decoder().feed(line)[0]
    if "error" in message:
        process.wait()
        raise ClusterError.from_json(message["error"])
    # It runs on without us; Popen must not wait for it, nor warn that nobody did.
    process.returncode = 0
