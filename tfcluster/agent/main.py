"""The main program of the agent's daemon process: readiness, logging, signals, exit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.agent import Agent
from tfcluster.agent.context import AgentContext
from tfcluster.agent.logs.cluster_logs import AgentLogHandler
from tfcluster.agent.rpc.rpc_server import AgentSocket, RpcServer
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.state.journal import JournalError
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.core.states import ACTIVE_RUN_STATES
from tfcluster.errors import ClusterError
from tfcluster.os import daemonize
from tfcluster.os.atomic_file import remove_unless_file
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.paths import set_state_home, state_folder
from tfcluster.process_mark import mark_of, set_mark
from tfcluster.processes.runs.run_plan import driver_of
from tfcluster.protocol.codec import encode
from tfcluster.runtime_dir import secrets_path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def main(line: str) -> None:
    """Run the agent of a cluster on this host until it exits.

    One line on standard output (the readiness message) tells the process that started the agent that the socket is
    ready, whether this agent or an earlier one serves it, or what the error is. Standard error receives only what
    libraries in C print, and tracebacks of processes that have just been forked; see `AgentLogHandler` for the log.

    Args:
        line: The configuration from the process that starts the agent: a JSON object with `cluster`, `host` (the
            cluster's name for this machine), `state` (the directory that holds the state of all clusters) and `older`,
            the agent of an older version that this one replaces (`pid`, `start_time` and `release`), or None.
    """
    options = json.loads(line)
    cluster, host = options["cluster"], options["host"]
    set_state_home(Path(options["state"]))
    readiness = _ReadinessPipe()
    daemonize.raise_descriptor_limit()  # a task needs two descriptors
    state_dir = StateDir(state_folder(cluster, host))
    agent_socket = None
    try:
        state_dir.make()
        older = options["older"]
        if older:
            _end_older(state_dir, host, ProcessHandle(older["pid"], older["start_time"]))
        if not state_dir.lock():
            readiness.send({"reply": {"serves": False}})
            return
        _redirect_stderr(state_dir.agent_stderr)
        state_dir.on_recreated = partial(_redirect_stderr, state_dir.agent_stderr)
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[AgentLogHandler(state_dir.agent_log)])
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        agent_socket = AgentSocket(cluster, host)
        state_dir.publish_socket(agent_socket.path)
        set_mark(mark_of(state_dir.path))  # commands know by the lock file whose process this is
        daemonize.set_process_title(f"tfcluster: {cluster} agent on {host}")
        asyncio.run(_run(cluster, host, state_dir, agent_socket, readiness, older and older["release"]))
    except (ClusterError, OSError) as problem:
        error = problem if isinstance(problem, ClusterError) else _describe(problem, state_dir.path)
        if agent_socket is not None:
            agent_socket.remove()
        state_dir.unlock()
        readiness.send({"error": error.to_json()})
        sys.exit(int(error.exit_code))


def _describe(error: OSError, folder: Path) -> ClusterError:
    """Return the error for users that the agent cannot start, for example because the disk of its folder is full."""
    hint = "Make room there, or set XDG_STATE_HOME to a folder on another disk." if error.errno in _NO_ROOM else ""
    return ClusterError(f"{error.filename or folder}: the agent cannot start: {error.strerror}", hint=hint)


def _end_older(state_dir: StateDir, host: str, older: ProcessHandle) -> None:
    """End an agent of an older version, unless this one cannot succeed it.

    Raises:
        ClusterError: The journal cannot be read, or the agent does not exit.
    """
    try:
        state_dir.journal.read(host)
    except JournalError as error:
        if error.is_newer:
            raise
        hint = (
            f"`kill {older.pid}` stops the older agent, which might know more; then `tfcluster down` stops the cluster."
        )
        raise ClusterError(error.message, hint=hint) from error
    _wait_for_drivers(state_dir)
    if not older.terminate(settings.AGENT_END_SECONDS, settings.AGENT_EXIT_SECONDS):
        raise ClusterError(f"the older agent (pid {older.pid}) has not exited after SIGKILL")


def _wait_for_drivers(state_dir: StateDir) -> None:
    """Wait until each active run has a driver, as one that an older fork server has not started yet would be lost."""
    runs = RunStore(state_dir.runs)
    deadline = time.monotonic() + settings.UPGRADE_DRIVERS_SECONDS
    while time.monotonic() < deadline:
        active = [record.run for record in runs.read_all() if record.state in ACTIVE_RUN_STATES]
        if all(driver_of(runs.folder(run)) is not None for run in active):
            return
        time.sleep(settings.PROCESS_EXIT_POLL_SECONDS)


async def _run(
    cluster: str,
    host: str,
    state_dir: StateDir,
    agent_socket: AgentSocket,
    readiness: _ReadinessPipe,
    older_release: str | None,
) -> None:
    context = AgentContext(cluster, host, state_dir, secrets_path(agent_socket.path))
    agent = Agent(context, agent_socket)
    await agent.adopt(older_release)
    watching = asyncio.ensure_future(agent.watch())
    readiness.send({"reply": {"serves": True}})
    await RpcServer(context, agent.dispatcher).serve(agent_socket)
    watching.cancel()
    # Before the lock is released: after that the socket at this path may belong to the next agent.
    agent_socket.remove()
    agent.stop()


class _ReadinessPipe:
    """The pipe to the process that started the agent, which waits for the readiness message (as in sd_notify).

    If the agent dies before it has sent the message, that process reads the end of file instead. The pipe moves from
    standard output to another descriptor, which the agent's child processes close; they keep standard output open. A
    child that outlives the agent would otherwise keep the waiting process from reading the end of file.
    """

    def __init__(self) -> None:
        self._line: int | None = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.close(nothing)

    def send(self, message: dict[str, object]) -> None:
        """Write the message and close the pipe, so that nothing has to wait for the agent's exit.

        Does nothing if a message was written before.
        """
        if self._line is None:
            return
        with contextlib.suppress(BrokenPipeError):  # the command that started this agent was interrupted
            os.write(self._line, encode(message))
        os.close(self._line)
        self._line = None


class _BestEffortStderr(io.TextIOBase):
    """A standard error that drops text if the disk is full instead of raising an exception in its writers."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))
        return len(text)


def _redirect_stderr(path: Path) -> None:
    """Append standard error to a file; a long file of earlier agents is renamed."""
    remove_unless_file(path)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > settings.AGENT_STDERR_MAX_BYTES:
            path.replace(path.with_suffix(".1"))
    output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 2)
    os.close(output)
    sys.stderr = _BestEffortStderr()
