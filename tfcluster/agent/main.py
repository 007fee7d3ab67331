"""The agent of one cluster on one host, and the main program of its process: readiness, adoption, checks, exit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import FrameType

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.handlers.cluster import UnreadableCluster, lasting_processes
from tfcluster.agent.logs.cluster_logs import AgentLogHandler
from tfcluster.agent.logs.log_reader import last_up
from tfcluster.agent.rpc_server import AgentSocket, Dispatcher, RpcServer
from tfcluster.agent.runs.store import RunStore
from tfcluster.agent.state.journal import JournalError
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.core.states import ACTIVE_RUN_STATES, TaskState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os import daemonize
from tfcluster.os.files import remove_unless_file
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.os.procfs import boot_id
from tfcluster.paths import STATE_HINT, set_state_home, state_folder
from tfcluster.process_mark import NO_MARK, mark_of, set_mark
from tfcluster.processes.runs.run_plan import driver_of
from tfcluster.protocol.codec import OWN_GREETING, encode
from tfcluster.runtime_dir import secrets_path

_logger = logging.getLogger(__name__)


class Agent:
    """The agent of one cluster on one host."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self.dispatcher = Dispatcher(context)

    async def adopt(self, older_release: str | None = None) -> None:
        """Restore the cluster from the journal and adopt the processes of an earlier agent, if there was one.

        `older_release` is the release of the earlier agent, if this one has ended it to replace it.
        """
        context = self._context
        try:
            record = context.state_dir.journal.read(context.host)
        except JournalError as problem:
            self.dispatcher.unreadable = UnreadableCluster(context, problem)
            return
        if record is None and await lasting_processes(mark_of(context.state_dir.path)):
            hint = f"`tfcluster down -c {context.cluster}` stops them."
            missing = ClusterError(f"{context.state_dir.journal.path} is missing", hint=hint)
            self.dispatcher.unreadable = UnreadableCluster(context, missing, is_missing=True)
            return
        if record is not None:
            if record.network is not None:
                context.adopt_network(record.network)
            with contextlib.suppress(OSError):  # the first probe tries again
                context.prober.ensure_started()
            if record.boot != boot_id():
                context.supervisor.history.record("host-rebooted", detail="no process of the cluster has survived")
            if older_release is None:
                context.supervisor.history.record("agent-started", detail=f"pid {os.getpid()}; the previous agent died")
            else:
                detail = f"pid {os.getpid()}; from tfcluster {older_release} to {OWN_GREETING}"
                context.supervisor.history.record("agent-upgraded", detail=detail)
            with contextlib.suppress(ClusterError):  # tasks that run can be watched and stopped without TensorFlow
                context.supervisor.load_tensorflow()
            await context.supervisor.adopt(record)
            context.incidents.adopt(record)
            for task in record.topology.reserved:
                if task.host != context.host:
                    continue
                with contextlib.suppress(OSError):  # the port is taken: reported when the task starts
                    context.ports.reserve(task.port or 0)
            context.forwarder.adopt()
        context.supervisor.up_since = last_up(context.state_dir.events)
        context.runs.adopt(context.supervisor.up_since or 0.0)
        if record is None:
            await context.runs.cancel_all()  # these are runs of a cluster that is down
        else:
            self.dispatcher.runs.start_again()
        self.dispatcher.cluster.resume()

    async def watch(self) -> None:
        """Check the tasks, the log writer and the fork server periodically until cancelled.

        SIGTERM ends the agent, see `_terminate`. SIGPWR ends the runs, as the host ends now.
        """
        # Not add_signal_handler: through its wakeup descriptor, a signal to a process that was just forked would reach
        # the agent.
        end_runs = self._context.host_end.warn_now
        for number, action in ((signal.SIGTERM, self._terminate), (settings.HOST_END_SIGNAL, end_runs)):
            signal.signal(number, partial(_on_signal, asyncio.get_running_loop(), os.getpid(), action))
        try:
            self._context.state_dir.watch_lock(self._leave)
        except OSError as error:
            _logger.warning("a deleted lock file would not be noticed: %s", error.strerror)
        changed = self._context.supervisor.changed

        pause = self._context.supervisor.pause
        await asyncio.gather(
            _run_forever(self.dispatcher.shutdown.expire_lease, pause),
            _run_forever(self._write_postponed_journal, pause),
            _run_forever(self._context.supervisor.check_all, pause),
            _run_forever(self._context.usage.sample_host, pause),
            _run_forever(self._check_helpers, pause),
            _run_forever(self._context.remote_tasks.schedule_checks, pause),
            _run_forever(self._context.incidents.schedule_check, pause),
            _run_forever(self._context.host_end.check, self._context.host_end.pause),
            _run_forever(self._context.waits.schedule_checks, self._context.waits.pause),
            _run_forever(self._react_to_changes, lambda: changed.wait_for_change(changed.count)),
        )

    def _terminate(self) -> None:
        """Exit because of SIGTERM."""
        self._exit("by SIGTERM; the tasks continue, and the next command starts another agent")

    def _leave(self) -> None:
        """Exit because the lock file was deleted: another agent can start now, and only one may supervise the tasks."""
        context = self._context
        if context.is_going_down:
            return  # it removes the file itself
        if not context.state_dir.events.exists():
            os._exit(int(ExitCode.TERMINATED))  # the folder is being deleted: a new file would keep it from that
        self._exit(f"as its lock file in {context.state_dir.path} was deleted; the tasks continue")

    def _exit(self, cause: str) -> None:
        """Exit; tasks and runs continue, and the next agent adopts them.

        This does not wait for anything and cancels nothing, because the end of a request would cancel its run.
        """
        if self._context.is_idle:
            self._context.quitting.set()
            return
        self._context.supervisor.history.record("agent-stopped", detail=f"pid {os.getpid()}, {cause}")
        os._exit(int(ExitCode.TERMINATED))

    def stop(self) -> None:
        """Release all resources of the agent; the tasks' log files and the runs' directories stay."""
        context, unreadable = self._context, self.dispatcher.unreadable
        context.prober.stop()
        context.runs.fork_server.stop()
        context.ports.release_except(())
        context.network.leave()
        set_mark(NO_MARK)  # another agent may start once the folder is unlocked, before this process has exited
        if unreadable is not None and not unreadable.is_down:
            context.state_dir.unlock()  # the journal may record processes: it and all files next to it stay
            return
        context.forwarder.stop()
        context.log_collector.stop()
        with contextlib.suppress(OSError):  # without the cluster the file has no use
            context.secrets.delete()
        context.state_dir.clean_up()

    def _write_postponed_journal(self) -> None:
        """Write the journal if that has failed: tasks that it could not record wait for it."""
        if self._context.supervisor.journal_obstacle and not self._context.is_going_down:
            with contextlib.suppress(ClusterError):  # the obstacle is logged when it appears
                self._context.supervisor.write_journal()

    async def _check_helpers(self) -> None:
        context, history = self._context, self._context.supervisor.history
        for helper, event, name in (
            (context.log_collector, "log-writer-restarted", "log writer"),
            (context.prober, "prober-restarted", "health prober"),
            (context.runs.fork_server, "fork-server-killed", "fork server"),
        ):
            if (pid := helper.kill_if_stopped()) is not None:
                history.record(event, detail=f"the {name}, pid {pid}, was stopped by a signal and was replaced")
        for run in list(context.runs.runs.values()):
            if run.memory is not None and run.is_active:
                run.memory.sample(time.monotonic())
            if await run.continue_driver() and run.process is not None:
                detail = f"the driver of {run.id}, pid {run.process.pid}, was stopped by a signal and was continued"
                history.record("driver-continued", detail=detail)
        context.network.ensure_held()

    def _react_to_changes(self) -> None:
        """Update the runs after a change of the tasks, and start the fork server.

        Runs end that cannot continue without the tasks that are down. On the host of the head task, the fork server
        starts as soon as all tasks on this host are ready.
        """
        context = self._context
        context.report_lost_tasks()
        context.incidents.note_failed_tasks()
        topology = context.supervisor.topology
        if topology is None or topology.head().host != context.host or context.is_going_down:
            return  # programs run on the host of the head task
        is_ready = all(task.machine.state is TaskState.READY for task in context.supervisor.tasks.values())
        if is_ready and topology.warm:
            context.runs.fork_server.ensure_started()


def _on_signal(
    loop: asyncio.AbstractEventLoop, agent: int, action: Callable[[], None], number: int, frame: FrameType | None
) -> None:
    """Take the action of a signal in the agent's loop."""
    if os.getpid() == agent:
        loop.call_soon_threadsafe(action)
    else:  # a child that has not reset the handler yet
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


async def _run_forever(work: Callable[[], Awaitable[None] | None], pause: Callable[[], Awaitable[None]]) -> None:
    """Run a function periodically until cancelled, with a pause after each call.

    An exception of the function is logged and does not end the loop. A failure that repeats is logged only once.
    """
    last_failure = ""
    while True:
        failure = ""
        try:
            if (running := work()) is not None:
                await running
        except Exception:
            failure = traceback.format_exc()
        if failure not in ("", last_failure):
            _logger.error("periodic work failed: %s", failure.rstrip())
        last_failure = failure
        await pause()


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
    signal.signal(settings.HOST_END_SIGNAL, signal.SIG_IGN)  # until there is an event loop
    daemonize.raise_descriptor_limit()  # a task needs two descriptors
    state_dir = StateDir(state_folder(cluster, host))
    agent_socket = None
    try:
        older = options["older"]
        if older:
            _end_older(state_dir, host, ProcessHandle(older["pid"], older["start_time"]))
        if (other := state_dir.lock()) is not None:
            readiness.send({"reply": {"other": other}})
            return
        secrets = secrets_path(cluster, host)
        state_dir.write_lock(secrets)
        set_mark(mark_of(state_dir.path))  # commands know by the lock file whose process this is
        daemonize.set_process_title(f"tfcluster: {cluster} agent on {host}")
        _redirect_stderr(state_dir.agent_stderr)
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[AgentLogHandler(state_dir.agent_log)])
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        agent_socket = _open_socket(state_dir.socket)
        context = AgentContext(cluster, host, state_dir, secrets)
        asyncio.run(_run(context, agent_socket, readiness, older and older["release"]))
    except (ClusterError, OSError) as problem:
        error = problem if isinstance(problem, ClusterError) else _describe(problem, state_dir.path)
        if agent_socket is not None:
            agent_socket.remove()
        state_dir.unlock()
        readiness.send({"error": error.to_json()})
        sys.exit(int(error.exit_code))


def _open_socket(path: Path) -> AgentSocket:
    """Listen on the agent's socket. Raises ClusterError: the file system has no sockets."""
    try:
        return AgentSocket(path)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        raise ClusterError(
            f"{path}: cannot create the agent's socket: {error.strerror}",
            hint=f"Not every file system can have sockets. {STATE_HINT}",
        ) from error


def _describe(error: OSError, folder: Path) -> ClusterError:
    """Return the error for users that the agent cannot start, for example because the disk of its folder is full."""
    hint = "Make room there, or set XDG_STATE_HOME to a folder on another disk." if error.errno in _NO_ROOM else ""
    return ClusterError(f"{error.filename or folder}: the agent cannot start: {error.strerror}", hint=hint)


def _end_older(state_dir: StateDir, host: str, older: ProcessHandle) -> None:
    """End an agent of an older version, unless this one cannot succeed it.

    Raises ClusterError: the journal cannot be read, or the agent does not exit.
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
    context: AgentContext, agent_socket: AgentSocket, readiness: _ReadinessPipe, older_release: str | None
) -> None:
    agent = Agent(context)
    await agent.adopt(older_release)
    watching = asyncio.ensure_future(agent.watch())
    readiness.send({"reply": {"other": None}})
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
