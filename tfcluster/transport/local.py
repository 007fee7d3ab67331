"""The transport to an agent on this machine: connect to its Unix socket, and start it."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster import boot, settings
from tfcluster.control_characters import escape_control_characters
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.files import read_file
from tfcluster.os.process_handle import ProcessHandle, peer_credentials
from tfcluster.os.unix_socket import socket_address
from tfcluster.paths import LOCAL_HOST, LOCK, agent_pid, journal_path, socket_path, state_folder, state_home
from tfcluster.process_mark import MARK, NO_MARK, describe_process, is_marked, mark_of, marked_processes
from tfcluster.protocol.codec import (
    OWN_GREETING,
    Decoder,
    Greeting,
    MessageDecoder,
    encode,
    encode_greeting,
    parse_writer,
    version_error,
)
from tfcluster.transport.channel import Channel, readable_fds, set_send_timeout
from tfcluster.transport.children import release_child
from tfcluster.transport.errors import UnrecordedProcessesError, not_running

if TYPE_CHECKING:
    from tfcluster.protocol.api import Request
    from tfcluster.providers.host_side import StartAgent, StartedAgent


def print_note(text: str) -> None:
    """Print a line to standard error."""
    print(escape_control_characters(text), file=sys.stderr, flush=True)


class AgentProcess:
    """The process that serves a cluster on this machine, by the pid that the lock file names."""

    def __init__(self, cluster: str, host: str, pid: int) -> None:
        self.cluster = cluster
        self.host = host
        self.pid = pid

    def is_agent(self) -> bool:
        """Return whether the process runs and is the agent: after a reboot, its pid may be that of any process."""
        try:
            process = ProcessHandle.from_pid(self.pid)
            mark = mark_of(state_folder(self.cluster, self.host))
            return process is not None and process.is_alive() and is_marked(self.pid, mark)
        except OSError:  # it has exited, or belongs to another user; or no descriptor is available to read /proc
            return False

    def no_socket_error(self) -> ClusterError:
        """Return the error that the agent runs, but does not listen at its socket's path."""
        path = socket_path(self.cluster, self.host)
        if not self.is_agent():
            return ClusterError(
                f"an agent of cluster {self.cluster!r} that cannot be seen here has locked {path.parent}",
                hint="It is in another container, or on another machine with the same folder: run commands there.",
                exit_code=ExitCode.UNREACHABLE,
            )
        return ClusterError(
            f"the agent of cluster {self.cluster!r} (pid {self.pid}) is running, but does not listen at {path}",
            hint=f"Type `kill -9 {self.pid}`: the tasks continue, and the next command starts another agent.",
            exit_code=ExitCode.UNREACHABLE,
        )


# What connect() raises if the socket, or a folder in its path, was removed or replaced.
_NO_LISTENER = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError, PermissionError)
# Prestarted agents, which do not know their cluster yet.
_prestarted: list[subprocess.Popen[bytes]] = []
# What starts agents, if this process does not.
_started_by: list[StartAgent | None] = []


class LocalAgentConnection(Channel):
    """A connection to a cluster's agent on this machine."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.pid, uid = peer_credentials(connection)
        if uid != os.getuid():
            connection.close()
            raise ClusterError("the agent's socket belongs to another user")

    def send(self, data: bytes) -> bool:
        """See `Channel.send`."""
        try:
            return super().send(data)
        except BlockingIOError:  # after SO_SNDTIMEO, see `connect`
            raise self.timeout_error(f"{settings.RPC_TIMEOUT_SECONDS:g} s") from None

    def call_once(self, request: Request[Any, Any], timeout: float) -> Any:
        """Greet the agent, send the only request of this connection, and return its reply or first event, as JSON."""
        from tfcluster.protocol.api import encode_request  # rarely needed in a session on a host

        self.send(encode_greeting() + encode(encode_request(request)))
        decoder = MessageDecoder(is_agent=False)
        while data := self.receive(timeout):
            decoder.feed(data)
            if (message := decoder.take_message()) is not None:
                if "error" in message:
                    raise ClusterError.from_json(message["error"])
                return message["event"] if "event" in message else message["reply"]
        raise ClusterError("the agent disconnected before it replied", hint="Try again.")

    def timeout_error(self, duration: str) -> ClusterError:
        """See `Channel.timeout_error`."""
        if self.pid == 0:
            return ClusterError(
                f"the agent, which is in another container, has not answered within {duration}",
                hint="Run commands there.",
                exit_code=ExitCode.UNREACHABLE,
            )
        return ClusterError(
            f"the agent (pid {self.pid}) has not answered within {duration}",
            hint=f"If a signal has stopped it, `kill -CONT {self.pid}` continues it. If it hangs, `kill -9 {self.pid}`:"
            " the tasks continue, and the next command starts another agent.",
            exit_code=ExitCode.UNREACHABLE,
        )


class LocalTransport:
    """The transport to the agent of a cluster on this machine; `note` is called with a line that the user sees.

    `RemoteTransport` has the same methods. If the host cannot be reached, `examine` reports it; `open`, `is_up` and
    `has_state` raise a HostUnreachableError, `open` in bounded time.
    """

    is_remote = False  # a connection can break while the agent continues, because a network is in between

    def __init__(self, cluster: str, host: str = LOCAL_HOST, note: Callable[[str], None] = print_note) -> None:
        self.cluster = cluster
        self.host = host
        self._note = note

    def examine(self, *, dry: bool = False) -> None:
        """Prepare the host for an agent by its setup commands, unless they have been run there, and examine it.

        If `dry`, do not run them: the report says what was not checked for that reason. An unreachable host has a
        report too. This machine has none, and needs no preparation.
        """

    def open(self, *, start: bool, upgrade: bool = False, dry: bool = False) -> LocalAgentConnection:
        """Connect to the agent, and send the greeting of the protocol; the first line to be received is the agent's.

        If the agent has died while its cluster is up, start a new one, which adopts the cluster. If the cluster turns
        out not to be up, close what is shared between commands. With `start`, start an agent if there is none, even if
        the cluster is not up. With `upgrade`, replace an agent that speaks an older version of the protocol; otherwise
        such an agent is an error. If `dry`, no agent is started that would find something of the cluster, as it would
        restart tasks: raise an error instead.
        """
        other: int | None = None  # the pid of an agent that keeps another one from starting
        began = next_start = time.monotonic()
        while True:
            agent = connect(self.cluster, self.host)
            # An agent that hangs up before it greets has just ended: another command has replaced it, or shut it down.
            if agent is not None and (greeting := _greet(agent)) is not None:
                if not greeting.is_older:
                    return agent
                if not upgrade or agent.pid <= 0:  # 0: it is in another pid namespace
                    raise version_error(greeting, is_agent=False)
                self._upgrade(agent, greeting)
                time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)
                continue
            now = time.monotonic()
            if not start and not self.is_up():
                unrecorded = self.find_unrecorded()
                runs = unrecorded is not None or self._is_alive(agent_pid(self._folder))
                if not runs or now > began + settings.UNRECORDED_EXIT_SECONDS:
                    raise unrecorded or not_running(self.cluster)
                time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)  # an agent may exit
                continue
            if dry and (obstacle := self._find_obstacle()) is not None:
                if now > began + settings.DRY_RUN_CONNECT_SECONDS:
                    raise obstacle
                time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)
                continue
            # An agent that shuts down closes its socket first and releases its state folder after it has cleaned up.
            if now > began + (settings.AGENT_CONNECT_SECONDS if self.is_up() else settings.AGENT_EXIT_SECONDS):
                raise AgentProcess(self.cluster, self.host, other or agent_pid(self._folder) or 0).no_socket_error()
            # While the folder is locked, another agent could not start. It is tried nevertheless in the end: after a
            # reboot, the pid in the lock file may be that of any process.
            is_locked = self._is_alive(other or agent_pid(self._folder))
            if now < next_start or (is_locked and now < next_start + settings.AGENT_START_IF_LOCKED_SECONDS):
                time.sleep(settings.AGENT_CONNECT_INTERVAL_SECONDS)
                continue
            if not upgrade and (writer := self._journal_writer()).is_older:
                # The agent has died. Another one would lock out those who still use the older version.
                raise version_error(writer, is_agent=False)
            other = start_agent(self.cluster, self.host)  # on a busy host this can take longer than the deadline
            next_start = time.monotonic() + settings.AGENT_START_INTERVAL_SECONDS

    def _find_obstacle(self) -> ClusterError | None:
        """Return why a dry run starts no agent, although none listens; None if nothing of the cluster is there."""
        if not self.is_up():
            unrecorded = self.find_unrecorded()
            return None if unrecorded is None else ClusterError(unrecorded.message, hint=unrecorded.hint)
        agent = AgentProcess(self.cluster, self.host, agent_pid(self._folder) or 0)
        if agent.is_agent():
            problem = agent.no_socket_error()
            return ClusterError(f"{problem.message}: not checked", hint=problem.hint, exit_code=ExitCode.UNHEALTHY)
        return ClusterError(
            f"cluster {self.cluster!r} is up, but its agent has died: not checked",
            hint=f"`tfcluster status -c {self.cluster}` starts the next one; a check does not.",
            exit_code=ExitCode.UNHEALTHY,
        )

    def _upgrade(self, agent: LocalAgentConnection, greeting: Greeting) -> None:
        """Replace an agent of an older protocol by one that adopts its cluster, or else raise an error and keep it."""
        process = ProcessHandle.from_pid(agent.pid)
        if process is None:  # it has just exited
            return
        older = {"pid": process.pid, "start_time": process.start_time, "release": str(greeting)}
        if start_agent(self.cluster, self.host, older=older) is None:
            self._note(f"agent upgraded from {greeting} to {OWN_GREETING}")

    def _journal_writer(self) -> Greeting:
        """Return the writer of the journal; this version if unknown."""
        journal = journal_path(self.cluster, self.host)
        with contextlib.suppress(OSError, ValueError, RecursionError):
            return parse_writer(read_file(journal, settings.STATE_FILE_MAX_BYTES).partition(b"\n")[0])
        return OWN_GREETING

    def _is_alive(self, pid: int | None) -> bool:
        """Return whether a process runs that seems to be the agent: one that shuts down, or has no socket."""
        try:
            process = None if pid is None else ProcessHandle.from_pid(pid)
            return process is not None and process.is_alive()
        except OSError:  # no descriptor is available to read /proc
            return False

    def find_unrecorded(self) -> UnrecordedProcessesError | None:
        """Return which processes of the cluster run on this machine, without a journal, if no agent does.

        They include an agent that exits, and its helpers.
        """
        processes = marked_processes(mark_of(self._folder))
        if not processes or agent_pid(self._folder) in {process.pid for process in processes}:
            return None
        from tfcluster.core.text import summarize_list  # rarely needed

        running = summarize_list([describe_process(process, self.cluster) for process in processes])
        journal = journal_path(self.cluster, self.host)
        return UnrecordedProcessesError(self.cluster, f"{journal} is missing; still running: {running}")

    def is_up(self) -> bool:
        """Return whether the cluster is up on the host, whether or not its agent is alive."""
        return journal_path(self.cluster, self.host).exists()

    def has_state(self) -> bool:
        """Return whether the cluster is up on the host or has left runs and logs; if not, close what commands share."""
        return self._folder.exists()

    @property
    def _folder(self) -> Path:
        return state_folder(self.cluster, self.host)

    def command_line(self, argv: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return the argv on this machine that runs a command on the host, with the streams of this process.

        With `is_terminal`, the command has a terminal; on this machine it has that of this process.
        """
        return list(argv)

    def has_lost_host(self, code: int) -> bool:
        """Return whether the exit code of a `command_line` says that the connection was lost, and not the command's."""
        return False

    def forward_port(self, local: int, remote: int) -> contextlib.nullcontext[None]:
        """Forward a port of this machine's loopback device to one of the host's, until the context is left."""
        return contextlib.nullcontext()

    def disconnect(self) -> None:
        """Close what is shared between commands, after a shutdown; never fail, nor interrupt other commands."""


def connect(cluster: str, host: str) -> LocalAgentConnection | None:
    """Connect to the agent of a cluster; return None if no agent listens."""
    path = socket_path(cluster, host)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        set_send_timeout(connection, settings.RPC_TIMEOUT_SECONDS)
        with socket_address(path) as address:
            connection.connect(address)
    except _NO_LISTENER:
        connection.close()
        return None
    except BlockingIOError:
        connection.close()
        raise ClusterError(
            f"the agent at {path} has not accepted a connection within {settings.RPC_TIMEOUT_SECONDS:g} s",
            hint="If a signal stopped it, `kill -CONT` continues it; if it hangs, `kill -9` it. The tasks continue. "
            f"Its pid is in {state_folder(cluster, host) / LOCK}.",
            exit_code=ExitCode.UNREACHABLE,
        ) from None
    except OSError as error:
        connection.close()
        raise ClusterError(
            f"{path}: cannot reach the agent: {error.strerror}", exit_code=ExitCode.UNREACHABLE
        ) from error
    return LocalAgentConnection(connection)


def _greet(agent: LocalAgentConnection) -> Greeting | None:
    """Send the greeting and return the agent's; return None if it hangs up.

    An agent that hangs counts as one of this version: the request will show what is wrong.
    """
    agent.send(encode_greeting())
    try:
        return agent.read_greeting(settings.GREETING_SECONDS)
    except ClusterError:
        return OWN_GREETING


def prestart_agent() -> None:
    """Start an agent before its cluster is known, so that it imports its modules while the spec is loaded.

    If no `start_agent` follows, the agent is killed when this process exits; see also `kill_prestarted_agent`.
    """
    _prestarted.append(_spawn())
    atexit.register(kill_prestarted_agent)


def start_agents_by(start: StartAgent | None) -> None:
    """Have the agents on this host be started by its provider; None: by this process."""
    _started_by[:] = [start]


def kill_prestarted_agent() -> None:
    """Kill what `prestart_agent` has started, if it is not used: the cluster has no task on this machine."""
    while _prestarted:
        unused = _prestarted.pop()
        unused.kill()
        unused.communicate()


def _agent_command() -> list[str]:
    return boot.command("tfcluster.agent.start", "main")


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _agent_command(),
        cwd="/",
        env={**os.environ, MARK: NO_MARK},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is meant for the command, not for the cluster
    )


def start_agent(cluster: str, host: str, *, older: Mapping[str, object] | None = None) -> int | None:
    """Start the agent of a cluster, and wait until it listens; if another agent was first, return its pid, or 0.

    `older` is the process and release of an agent that it replaces, as `agent.main` reads them. The error of a failed
    start contains the agent's own error.
    """
    process: StartedAgent
    try:
        process = _prestarted.pop()
    except IndexError:  # not checked in advance, since another thread may be starting an agent for another host
        start = _started_by[0] if _started_by else None
        process = _spawn() if start is None else start(_agent_command(), {**os.environ, MARK: NO_MARK})
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError), process.stdin:  # if the agent has died, its error is read below
        configuration = {"cluster": cluster, "host": host, "state": str(state_home()), "older": older}
        process.stdin.write(encode(configuration))
    return _wait_until_ready(process)


def _wait_until_ready(process: StartedAgent) -> int | None:
    """Wait for the readiness message of an agent; see `start_agent`."""
    assert process.stdout is not None, "it is a pipe"
    assert process.stderr is not None, "it is a pipe"
    with process.stdout, process.stderr:
        if not readable_fds([process.stdout.fileno()], settings.AGENT_START_SECONDS):
            _release(process)
            raise ClusterError(
                f"the agent (pid {process.pid}) did not become ready within {settings.AGENT_START_SECONDS:g} s",
                hint=f"See what blocks it: `cat /proc/{process.pid}/stack`, or kill it: `kill {process.pid}`.",
                exit_code=ExitCode.UNREACHABLE,
            )
        line = process.stdout.readline()
        if not line:
            lines = process.stderr.read().decode(errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            raise ClusterError(f"the agent exited before it listened (exit code {process.wait()}){last}")
    message = Decoder().feed(line)[0]
    if "error" in message:
        process.wait()
        raise ClusterError.from_json(message["error"])
    other: int | None = message["reply"]["other"]
    if other is not None:
        process.wait()
        return other
    _release(process)
    return None


def _release(agent: StartedAgent) -> None:
    """Leave an agent, which outlives this process; one that a provider has started is not a child."""
    if isinstance(agent, subprocess.Popen):
        release_child(agent)
