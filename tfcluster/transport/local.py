"""Reaching an agent on this machine: its Unix socket, and starting it."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCAL_HOST, LOCK, agent_socket, journal_path, state_folder, state_home
from tfcluster.process_handle import MARK, NO_MARK, peer_credentials
from tfcluster.protocol.codec import Decoder, encode
from tfcluster.transport.base import not_running
from tfcluster.transport.socket_channel import SocketChannel

# The agent runs the very code that starts it, whether or not that or another version is installed: the package is
# imported from there, with all its modules, and nothing else is. The current directory is not on the path: a stray
# json.py there must not end up in an agent. The lock keeps code that was sent to a host while it is used.
_PROGRAM = """
import contextlib, fcntl, sys
sys.path[:] = [sys.argv[1], *filter(None, sys.path)]
import tfcluster
del sys.path[0]
code = open(tfcluster.__file__)
with contextlib.suppress(OSError):
    fcntl.flock(code, fcntl.LOCK_SH)
from tfcluster.agent.main import main
if line := sys.stdin.readline():
    main(line)
"""
_START_SECONDS = 60.0
_PACKAGE_ROOT = Path(__file__).parent.parent.parent
# A command can meet an agent that is about to end, has just begun, or has yet to notice that its socket was removed;
# then it needs the next one, or a moment.
_MEETING_SECONDS = 10.0
# Between two looks whether an agent listens, and between two agents that are started because none does.
_LOOK_SECONDS = 0.02
_AGAIN_SECONDS = 0.5
#: For the end of an agent's process: killing its helpers and letting go of TensorFlow, on a host that is busy.
END_SECONDS = 30.0
# What connecting raises where the socket, or a folder on the way to it, was removed or replaced.
_NOT_THERE = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError, PermissionError)
# Agents that have begun to start and have not been told their cluster.
_begun: list[subprocess.Popen[bytes]] = []


class LocalAgentConnection(SocketChannel):
    """A connection to a cluster's agent on this machine, for one request."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.pid, uid = peer_credentials(connection)
        if uid != os.getuid():
            connection.close()
            raise ClusterError("the agent's socket belongs to another user")

    def shutdown_write(self) -> None:
        """Tell the agent that nothing more is to come; it can still answer."""
        with contextlib.suppress(OSError):  # it has hung up
            self._connection.shutdown(socket.SHUT_WR)

    def timeout_error(self, time: str) -> ClusterError:
        """See `SocketChannel.timeout_error`."""
        return ClusterError(
            f"the agent (pid {self.pid}) has not answered within {time}",
            hint=f"If it hangs, `kill -9 {self.pid}`: the tasks go on, and the next command starts another agent.",
            exit_code=ExitCode.UNREACHABLE,
        )

    def wait_for_end(self, timeout: float) -> bool:
        """Wait until the agent's process has ended; whether it did within `timeout` seconds."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        ended = bool(select.select([pidfd], [], [], timeout)[0])
        os.close(pidfd)
        return ended


class LocalTransport:
    """The way to the agent of a cluster on this machine.

    Args:
        cluster: The cluster's name.
        host: What the cluster calls this machine.
    """

    def __init__(self, cluster: str, host: str = LOCAL_HOST) -> None:
        self.cluster = cluster
        self.host = host

    def open(self, *, start: bool) -> LocalAgentConnection:
        """See `HostTransport.open`."""
        began = next_start = time.monotonic()
        while True:
            agent = connect(self.cluster, self.host)
            if agent is not None:
                return agent
            if not start and not self.is_up():
                raise not_running(self.cluster)
            now = time.monotonic()
            # One that goes down has given up its socket before it lets go of its folder, as it tidies up in between.
            if now > began + (_MEETING_SECONDS if self.is_up() else END_SECONDS):
                raise self._nothing_listens()
            if now < next_start:
                time.sleep(_LOOK_SECONDS)
                continue
            start_agent(self.cluster, self.host)  # on a busy host this alone can take longer than a meeting
            next_start = time.monotonic() + _AGAIN_SECONDS

    def _nothing_listens(self) -> ClusterError:
        return ClusterError(
            f"the agent of cluster {self.cluster!r} lives, but nothing listens at "
            f"{agent_socket(self.cluster, self.host)}",
            hint=f"Its pid is in {state_folder(self.cluster, self.host) / LOCK}: kill it. "
            "The tasks go on, and the next command starts another agent.",
            exit_code=ExitCode.UNREACHABLE,
        )

    def is_up(self) -> bool:
        """See `HostTransport.is_up`."""
        return journal_path(self.cluster, self.host).exists()

    def has_state(self) -> bool:
        """See `HostTransport.has_state`."""
        return state_folder(self.cluster, self.host).exists()

    def disconnect(self) -> None:
        """See `HostTransport.disconnect`: nothing is kept open."""


def connect(cluster: str, host: str) -> LocalAgentConnection | None:
    """Connect to the agent of a cluster; None when there is none that listens.

    Raises:
        ClusterError: There is one, and it cannot be reached.
    """
    path = agent_socket(cluster, host)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except _NOT_THERE:
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise ClusterError(
            f"{path}: cannot reach the agent: {error.strerror}", exit_code=ExitCode.UNREACHABLE
        ) from error
    return LocalAgentConnection(connection)


def begin() -> None:
    """Begin to start an agent whose cluster is not known yet: it imports what it needs and waits for a name.

    Its imports and the reading of the spec go on at the same time. If no `start_agent` follows, it ends with this
    process.
    """
    _begun.append(_spawn())
    atexit.register(_end_unused)


def _end_unused() -> None:
    while _begun:
        unused = _begun.pop()
        unused.kill()
        unused.communicate()


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(_PACKAGE_ROOT)],
        cwd="/",
        env={**os.environ, MARK: NO_MARK},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C for the command is not for the cluster
    )


def start_agent(cluster: str, host: str) -> None:
    """Start the agent of a cluster, or find that another command has; returns when its socket is there.

    Raises:
        ClusterError: The agent could not start, with its own words.
    """
    try:
        process = _begun.pop()
    except IndexError:  # asked for, not looked: another thread may be starting one for another host
        process = _spawn()
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    assert process.stderr is not None, "it is a pipe"
    with process.stdout, process.stderr:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # one that has died tells why below
            process.stdin.write(encode({"cluster": cluster, "host": host, "state": str(state_home())}))
        if not select.select([process.stdout], [], [], _START_SECONDS)[0]:
            process.returncode = 0  # as below
            raise ClusterError(
                f"the agent (pid {process.pid}) has not said that it listens within {_START_SECONDS:g} s",
                hint=f"Look what keeps it: `cat /proc/{process.pid}/stack`, or end it: `kill {process.pid}`.",
                exit_code=ExitCode.UNREACHABLE,
            )
        line = process.stdout.readline()
        if not line:
            said = process.stderr.read().decode(errors="replace").strip().splitlines()
            last = f": {said[-1]}" if said else ""
            raise ClusterError(f"the agent ended before it listened (exit code {process.wait()}){last}")
    message = Decoder().feed(line)[0]
    if "error" in message:
        process.wait()
        raise ClusterError.from_json(message["error"])
    if not message["reply"]["serves"]:
        process.wait()  # another one is first, and this one ends
        return
    # It runs on without us; Popen must not wait for it, nor warn that nobody did.
    process.returncode = 0
