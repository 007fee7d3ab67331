"""The agent of one cluster on one host: adopts what an earlier agent supervised, and runs periodic checks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.logs.log_reader import last_up
from tfcluster.agent.rpc.rpc_connection import Dispatcher
from tfcluster.agent.rpc.rpc_server import AgentSocket
from tfcluster.agent.shutdown import UnreadableCluster, lasting_processes
from tfcluster.agent.state.journal import JournalError
from tfcluster.core.states import TaskState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.procfs import boot_id
from tfcluster.process_mark import NO_MARK, mark_of, set_mark
from tfcluster.protocol.codec import OWN_GREETING
from tfcluster.runtime_dir import secrets_path

_logger = logging.getLogger(__name__)
_WAS_STOPPED = "was stopped by a signal and was replaced"


class Agent:
    """The agent of one cluster on one host."""

    def __init__(self, context: AgentContext, agent_socket: AgentSocket) -> None:
        self._context = context
        self._socket = agent_socket
        self.dispatcher = Dispatcher(context)
        self._last_repair_error = ""

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
            context.notices.load()
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
            for task in record.topology.reserved:
                if task.host != context.host:
                    continue
                with contextlib.suppress(OSError):  # the port is taken: reported when the task starts
                    context.ports.reserve(task.port or 0)
            context.forwarder.adopt()
        context.runs.adopt(last_up(context.state_dir.events) or 0.0)
        if record is None:
            await context.runs.cancel_all()  # these are runs of a cluster that is down
        self.dispatcher.cluster.resume()

    async def watch(self) -> None:
        """Check the tasks, the state directory, the log writer and the fork server periodically until cancelled.

        SIGTERM ends the agent, see `_terminate`. SIGURG, which a pod sends when it is deleted, ends the runs.
        """
        # Not add_signal_handler: through its wakeup descriptor, a signal to a process that was just forked would reach
        # the agent.
        warn = partial(self._context.runs.warn_of_end, "the pod was deleted")
        for number, action in ((signal.SIGTERM, self._terminate), (signal.SIGURG, warn)):
            signal.signal(number, partial(_on_signal, asyncio.get_running_loop(), os.getpid(), action))
        changed = self._context.supervisor.changed

        def pause() -> Awaitable[None]:
            return asyncio.sleep(settings.HEALTH_INTERVAL_SECONDS)

        await asyncio.gather(
            _run_forever(self.dispatcher.shutdown.expire_lease, pause),
            _run_forever(self._restore_files, lambda: asyncio.sleep(settings.AGENT_FILES_INTERVAL_SECONDS)),
            _run_forever(self._context.ports.restore_locks, pause),
            _run_forever(self._context.forwarder.ports.restore_locks, pause),
            _run_forever(self._context.forwarder.restore, pause),
            _run_forever(self._context.supervisor.check_all, pause),
            _run_forever(self._context.usage.sample_host, pause),
            _run_forever(self._check_helpers, pause),
            _run_forever(self._context.remote_tasks.schedule_checks, pause),
            _run_forever(self._context.incidents.schedule_check, pause),
            self._context.notices.run(),
            _run_forever(self._context.job_end.check, self._context.job_end.pause),
            _run_forever(self._context.waits.schedule_checks, self._context.waits.pause),
            _run_forever(self._react_to_changes, lambda: changed.wait_for_change(changed.count)),
        )

    def _terminate(self) -> None:
        """Exit because of SIGTERM: tasks and runs continue, and the next agent adopts them.

        This does not wait for anything and cancels nothing, because the end of a request would cancel its run.
        """
        if self._context.is_idle:
            self._context.quitting.set()
            return
        detail = f"pid {os.getpid()}, by SIGTERM; the tasks continue, and the next command starts another agent"
        self._context.supervisor.history.record("agent-stopped", detail=detail)
        os._exit(int(ExitCode.TERMINATED))

    def stop(self) -> None:
        """Release all resources of the agent; the tasks' log files and the runs' directories stay."""
        context, unreadable = self._context, self.dispatcher.unreadable
        context.incidents.stop()
        context.prober.stop()
        context.runs.stop()
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

    def _restore_files(self) -> None:
        """Restore the files through which commands and other agents find this agent, if they were deleted."""
        if self._context.quitting.is_set():
            return
        errors = []
        for restore in (self._repair_state_dir, self._context.state_dir.restore_second_lock, self._restore_socket):
            try:
                restore()
            except (ClusterError, OSError) as error:
                errors.append(str(error))
        text = "\n".join(errors)
        if text not in ("", self._last_repair_error):
            _logger.warning("%s", text)
        self._last_repair_error = text

    def _repair_state_dir(self) -> None:
        """Recreate the state directory if it was deleted, see `StateDir.repair`; write a journal that is outdated."""
        state_dir, supervisor = self._context.state_dir, self._context.supervisor
        if supervisor.topology is None or self._context.is_going_down:
            return
        if state_dir.repair() or not state_dir.journal.path.is_file():
            supervisor.write_journal()
            detail = "; ".join([f"{state_dir.path} had been deleted", *supervisor.deleted_log_warning()])
            supervisor.history.record("state-dir-repaired", detail=detail)
        elif supervisor.journal_obstacle:
            supervisor.write_journal()  # tasks that could not be recorded wait for it

    def _restore_socket(self) -> None:
        """Recreate the socket, and the file with the secret values next to it, if they were deleted."""
        context, supervisor = self._context, self._context.supervisor
        if not self._socket.is_in_place():
            self._socket.restore()
            if not context.is_idle:
                detail = f"the agent listens at {self._socket.path} again"
                supervisor.history.record("state-dir-repaired", detail=detail)
        context.state_dir.publish_socket(self._socket.path)
        context.secrets.path = secrets_path(self._socket.path)
        topology = supervisor.topology
        if topology and context.secrets.is_missing_for(topology) and not context.is_going_down:
            supervisor.write_journal()

    async def _check_helpers(self) -> None:
        history = self._context.supervisor.history
        pid = self._context.log_collector.kill_if_stopped()
        if pid is not None:
            history.record("log-writer-restarted", detail=f"the log writer, pid {pid}, {_WAS_STOPPED}")
        pid = self._context.prober.kill_if_stopped()
        if pid is not None:
            history.record("prober-restarted", detail=f"the health prober, pid {pid}, {_WAS_STOPPED}")
        pid = self._context.runs.fork_server.kill_if_stopped()
        if pid is not None:
            history.record("fork-server-killed", detail=f"the fork server, pid {pid}, {_WAS_STOPPED}")
        for run in list(self._context.runs.runs.values()):
            if await run.continue_driver() and run.process is not None:
                detail = f"the driver of {run.id}, pid {run.process.pid}, was stopped by a signal and was continued"
                history.record("driver-continued", detail=detail)
        self._context.network.ensure_held()

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
        if is_ready and settings.FORK_SERVER_STARTS_EARLY:
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
