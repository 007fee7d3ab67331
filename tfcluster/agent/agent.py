"""The agent of one cluster on one host: creates its parts, adopts what an earlier agent left, runs periodic checks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from functools import partial
from types import FrameType

from tfcluster import settings
from tfcluster.agent.agent_socket import AgentSocket
from tfcluster.agent.dispatcher import Dispatcher
from tfcluster.agent.handlers.apply import ApplyHandler
from tfcluster.agent.handlers.logs import LogHandlers
from tfcluster.agent.handlers.runs import RunHandlers
from tfcluster.agent.handlers.tasks import TaskHandlers
from tfcluster.agent.journal import JournalError
from tfcluster.agent.lease import Lease
from tfcluster.agent.logs.collector import LogCollector
from tfcluster.agent.periodic import run_forever
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.runs.cleanup import ContainerCleaner
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.runs.remote_tasks import RemoteTaskMonitor
from tfcluster.agent.secret_store import SecretStore
from tfcluster.agent.shutdown import Shutdown
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.tasks.probe_client import ProbeClient
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.agent.unreadable_cluster import UnreadableCluster
from tfcluster.core.states import ClusterState, TaskState, cluster_state
from tfcluster.core.status import ClusterStatus, HostStatus
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.process_handle import mark_of, marked_processes
from tfcluster.processes.c_api import TensorFlow
from tfcluster.runtime_dir import secrets_path
from tfcluster.tf_install import find_tensorflow_library

_logger = logging.getLogger(__name__)


class Agent:
    """The agent of one cluster on one host.

    Args:
        cluster: The cluster's name.
        host: The cluster's name for this host.
        folder: The cluster's state directory on this host.
        agent_socket: The socket on which the agent listens.

    Attributes:
        quitting: The shutdown event: set when the agent has nothing left to do.
        lease: The cluster's lease, which the requests of commands renew.
        dispatcher: Handles the requests of commands.
    """

    def __init__(self, cluster: str, host: str, folder: StateDir, agent_socket: AgentSocket) -> None:
        self.quitting = asyncio.Event()
        self._cluster = cluster
        self._host = host
        self._folder = folder
        self._socket = agent_socket
        self._ports = PortAllocator()
        self._prober = ProbeClient(f"tfcluster: {cluster} health prober")
        self._keeper = LogCollector(f"tfcluster: {cluster} log writer", folder)
        self.lease = Lease()
        self._secrets = SecretStore(secrets_path(agent_socket.path))
        self._supervisor = Supervisor(host, folder, self._secrets, self._ports, self._prober, self._keeper, self._load)
        clearing = ContainerCleaner(self._supervisor, self._prober)
        self._elsewhere = RemoteTaskMonitor(self._supervisor, self._prober, self._tasks_in_use, self._tell_runs)
        self._runs = RunManager(f"tfcluster: {cluster} fork server", folder, clearing.clear, self._elsewhere.refresh)
        self._tensorflow: TensorFlow | None = None
        self._unreadable: UnreadableCluster | None = None
        self._trouble = ""  # why the last repair of the state directory failed
        self._going_down = Shutdown(
            folder,
            self._secrets,
            self._supervisor,
            self._runs,
            lambda: self._changes.abandon(),
            self._cluster_status,
            self.quitting,
        )
        refuse = self._going_down.refuse
        self._changes = ApplyHandler(
            host, folder, self._supervisor, self._ports, self._runs, self._load, self._cluster_status, refuse
        )
        tasks = TaskHandlers(self._supervisor, self._changes.settled, self._cluster_status, refuse)
        runs = RunHandlers(folder, self._supervisor, self._elsewhere, self._runs, refuse)
        logs = LogHandlers(folder, self._supervisor, self.quitting)
        self.dispatcher = Dispatcher(self._changes, tasks, runs, logs, self._going_down, self._detect_missing_journal)

    @property
    def idle(self) -> bool:
        """Return whether the agent has no cluster to supervise."""
        return self._supervisor.topology is None and not (self._unreadable and self._unreadable.is_stopping)

    async def adopt(self) -> None:
        """Restore the cluster from the journal and adopt the processes of an earlier agent, if there was one."""
        try:
            record = self._folder.journal.read(self._host)
        except JournalError as problem:
            self._unreadable = UnreadableCluster(self._cluster, self._host, self._folder, problem, self.quitting)
            self.dispatcher.unreadable = self._unreadable
            return
        if record is not None:
            with contextlib.suppress(OSError):  # the first probe tries again
                self._prober.start()
            self._supervisor.history.record("agent-started", detail=f"pid {os.getpid()}; the previous agent died")
            with contextlib.suppress(ClusterError):  # tasks that run can be watched and stopped without TensorFlow
                self._load()
            await self._supervisor.adopt(record)
            for task in record.topology.reserved:
                if task.host != self._host:
                    continue
                with contextlib.suppress(OSError):  # the port is taken: reported when the task starts
                    self._ports.hold(task.port or 0)
        self._runs.adopt()
        if record is None:
            await self._runs.cancel_all()  # these are runs of a cluster that is down
        self._changes.resume()

    async def watch(self) -> None:
        """Check the tasks, the state directory, the log writer and the fork server periodically until cancelled.

        SIGTERM ends the agent, see `_terminate`.
        """
        # Not add_signal_handler: through its wakeup descriptor, a signal to a process that was just forked would reach
        # the agent.
        signal.signal(signal.SIGTERM, partial(self._on_sigterm, asyncio.get_running_loop(), os.getpid()))
        changed = self._supervisor.changed
        await asyncio.gather(
            run_forever(
                partial(self._going_down.end_if_forgotten, self.lease),
                lambda: asyncio.sleep(settings.HEALTH_INTERVAL_SECONDS),
            ),
            run_forever(self._restore_files, lambda: asyncio.sleep(settings.AGENT_FILES_INTERVAL_SECONDS)),
            run_forever(self._ports.restore_locks, lambda: asyncio.sleep(settings.HEALTH_INTERVAL_SECONDS)),
            run_forever(self._supervisor.checks.all_soon, lambda: asyncio.sleep(settings.HEALTH_INTERVAL_SECONDS)),
            run_forever(self._check_helpers, lambda: asyncio.sleep(settings.HEALTH_INTERVAL_SECONDS)),
            run_forever(self._elsewhere.check_soon, lambda: asyncio.sleep(settings.HEALTH_INTERVAL_SECONDS)),
            run_forever(self._react_to_changes, lambda: changed.since(changed.count)),
        )

    def _on_sigterm(self, loop: asyncio.AbstractEventLoop, agent: int, number: int, frame: FrameType | None) -> None:
        if os.getpid() == agent:
            loop.call_soon_threadsafe(self._terminate)
        else:  # a child that has not reset the handler yet
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _terminate(self) -> None:
        """Exit because of SIGTERM: tasks and runs continue, and the next agent adopts them.

        This does not wait for anything and cancels nothing, because the end of a request would cancel its run.
        """
        if self.idle:
            self.quitting.set()
            return
        detail = f"pid {os.getpid()}, by SIGTERM; the tasks continue, and the next command starts another agent"
        self._supervisor.history.record("agent-stopped", detail=detail)
        os._exit(int(ExitCode.TERMINATED))

    def stop(self) -> None:
        """Release all resources of the agent; the tasks' log files and the runs' directories stay."""
        self._prober.stop()
        self._runs.stop()
        self._ports.keep_only(())
        if self._unreadable is not None and not self._unreadable.is_down:
            self._folder.unlock()  # the journal may record processes: it stays for `tfcluster down`
            return
        self._keeper.stop()
        with contextlib.suppress(OSError):  # without the cluster the file has no use
            self._secrets.forget()
        self._folder.leave()

    def _detect_missing_journal(self) -> None:
        """Let `down` stop processes of the cluster that run although the journal is gone: its folder was deleted."""
        if self._supervisor.topology is not None or self._unreadable is not None:
            return
        if marked_processes(mark_of(self._folder.path)):
            missing = ClusterError(f"{self._folder.journal.path} is missing")
            self._unreadable = UnreadableCluster(self._cluster, self._host, self._folder, missing, self.quitting)
            self.dispatcher.unreadable = self._unreadable

    def _restore_files(self) -> None:
        """Restore the files through which commands and other agents find this agent, if they were deleted."""
        if self.quitting.is_set():
            return
        troubles = []
        for restore in (self._mend, self._folder.restore_second_lock, self._restore_socket):
            try:
                restore()
            except (ClusterError, OSError) as error:
                troubles.append(str(error))
        trouble = "\n".join(troubles)
        if trouble not in ("", self._trouble):
            _logger.warning("%s", trouble)
        self._trouble = trouble

    def _mend(self) -> None:
        """Recreate the state directory if it was deleted; see `StateDir.repair`."""
        if self._supervisor.topology is None or self._going_down.under_way:
            return
        if self._folder.repair() or not self._folder.journal.path.is_file():
            self._supervisor.write_journal()
            detail = "; ".join([f"{self._folder.path} had been deleted", *self._supervisor.deleted_log_warning()])
            self._supervisor.history.record("state-dir-repaired", detail=detail)

    def _restore_socket(self) -> None:
        """Recreate the socket, and the file with the secret values next to it, if they were deleted."""
        if not self._socket.is_in_place():
            self._socket.restore()
            if not self.idle:
                self._supervisor.history.record(
                    "state-dir-repaired", detail=f"the agent listens at {self._socket.path} again"
                )
        self._folder.publish_socket(self._socket.path)
        self._secrets.path = secrets_path(self._socket.path)
        topology = self._supervisor.topology
        if topology and self._secrets.is_missing_for(topology) and not self._going_down.under_way:
            self._supervisor.write_journal()

    def _check_helpers(self) -> None:
        ended = self._keeper.end_if_stopped()
        if ended is not None:
            detail = f"the log writer, pid {ended}, was stopped by a signal and was replaced"
            self._supervisor.history.record("log-writer-restarted", detail=detail)
        ended = self._runs.fork_server.kill_if_stopped()
        if ended is not None:
            detail = f"the fork server, pid {ended}, was stopped by a signal and was replaced"
            self._supervisor.history.record("fork-server-killed", detail=detail)

    def _load(self) -> TensorFlow:
        if self._tensorflow is None:
            self._tensorflow = TensorFlow(find_tensorflow_library())
        return self._tensorflow

    def _react_to_changes(self) -> None:
        """Update the runs after a change of the tasks, and start the fork server.

        Runs end that cannot continue without the tasks that are down. On the host of the head task, the fork server
        starts as soon as all tasks on this host are ready.
        """
        self._tell_runs()
        topology = self._supervisor.topology
        if topology is None or topology.head().host != self._host or self._going_down.under_way:
            return  # programs run on the host of the head task
        if cluster_state([task.machine.state for task in self._supervisor.tasks.values()]) is ClusterState.RUNNING:
            self._runs.fork_server.start()

    def _tell_runs(self) -> None:
        """Tell the runs which tasks are down."""
        tasks = self._supervisor.tasks
        down = {
            name: task.describe_problem() for name, task in tasks.items() if task.machine.state is not TaskState.READY
        }
        self._runs.on_task_health(self._every_task(), {**down, **self._elsewhere.down})

    def _every_task(self) -> list[str]:
        topology = self._supervisor.topology
        return [task.name for task in topology.tasks] if topology else []

    def _tasks_in_use(self) -> set[str]:
        return {name for names in self._runs.tasks_in_use(self._every_task()).values() for name in names}

    def _cluster_status(self) -> ClusterStatus:
        topology = self._supervisor.require_cluster()
        tasks = tuple(task.status() for task in self._supervisor.tasks.values())
        version = self._tensorflow.version if self._tensorflow else None
        return ClusterStatus(
            cluster=topology.cluster,
            state=cluster_state([task.state for task in tasks]),
            spec=topology.spec,
            hosts=(HostStatus(self._host, "up", os.getpid(), version),),
            tasks=tasks,
            runs=tuple(run.status() for run in self._runs.runs.values()),
        )
