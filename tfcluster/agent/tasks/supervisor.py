"""Supervisor of this host's tasks: starts, stops, restarts and adopts them, and writes the cluster to the journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from tfcluster import settings
from tfcluster.agent.change_notifier import ChangeNotifier
from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.agent.logs.cluster_logs import EventLog, LogCollector
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.state.journal import journal_error
from tfcluster.agent.state.journal_record import Record, TaskRecord, drop_unreleased, restore, to_record
from tfcluster.agent.state.secret_store import SecretStore, without_values
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.tasks.event_dispatcher import TaskEventDispatcher
from tfcluster.agent.tasks.health_monitor import HealthMonitor, ProbeClient
from tfcluster.agent.tasks.state_machine import TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_launcher import TaskLauncher, explain
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TERMINAL_STATES, TaskState
from tfcluster.core.topology import PS_JOB, ClusterTopology, Task
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.version import PROTOCOL


class Supervisor:
    """Supervises the tasks of one cluster on this host.

    `load` loads TensorFlow and returns it.

    Attributes:
        topology: The topology of the whole cluster; None until there is one.
        next: The topology that will replace `topology` once some tasks have stopped; None if no change is in progress.
        tasks: The cluster's tasks on this host, by name.
        changed: Notified whenever a task's state changes.
    """

    def __init__(
        self,
        host: str,
        folder: StateDir,
        secrets: SecretStore,
        ports: PortAllocator,
        prober: ProbeClient,
        log_collector: LogCollector,
        load: Callable[[], TensorFlow],
        network: ClusterNetwork,
    ) -> None:
        self.host = host
        self.topology: ClusterTopology | None = None
        self.next: ClusterTopology | None = None
        self.tasks: dict[str, TaskRuntime] = {}
        self.changed = ChangeNotifier()
        self.history = EventLog(folder.events)
        self.health = HealthMonitor(prober, lambda: self.tasks, self._dispatch)
        self._folder = folder
        self._secrets = secrets
        self._log_collector = log_collector
        self._network = network
        self._launcher = TaskLauncher(folder, ports, load, self._dispatch, self.health.poll_until_ready, network)
        self._dispatcher = TaskEventDispatcher(
            folder.journal, self._launcher, self.history, self.changed, self.require_cluster, self.write_journal
        )

    def require_cluster(self) -> ClusterTopology:
        """Return the topology of the cluster; raise a ClusterError if there is none."""
        if self.topology is None:
            raise ClusterError(
                f"cluster {self._folder.path.parent.name!r} is not running",
                hint="Start it with `tfcluster up`.",
                exit_code=ExitCode.NOT_RUNNING,
            )
        return self.topology

    def apply(self, topology: ClusterTopology, start: Iterable[str]) -> None:
        """Replace the current topology, if any, by a new one, and start tasks of it.

        The journal is written once, with the new topology and the new processes. An agent that dies before that leaves
        the old cluster. An agent that dies after that leaves the new cluster, and the next agent starts the tasks that
        this one has not started.

        Every port of the topology is allocated already. Tasks that it removes or changes must be stopped or failed.

        Raises:
            ClusterError: The journal cannot be written; everything is as before.
        """
        before = self.topology, self.next, self.tasks
        attributes = [(task, vars(task).copy()) for task in self.tasks.values()]
        self._set_topology(topology)
        self.next = None
        transitions = [self._dispatcher.make_transition(self.tasks[name], TaskEvent.START) for name in start]
        try:
            self.write_journal()
        except ClusterError:
            for transition in transitions:
                transition.undo()
            self.topology, self.next, self.tasks = before
            for task, values in attributes:
                vars(task).update(values)
            raise
        self._dispatcher.publish(transitions)
        self._dispatcher.release(transitions)

    async def adopt(self, record: Record) -> None:
        """Adopt the tasks in the journal of an earlier agent: watch those that still run, restart others by policy.

        The method returns after every task that still runs has been probed.
        """
        self._set_topology(self._secrets.restore(record.topology, record.secrets))
        if record.next is not None:
            self.next = self._secrets.restore(record.next, record.secrets)
        events = [
            (self.tasks[name], event)
            for name, each in record.tasks.items()
            if (event := self._restore_task(self.tasks[name], each)) is not None
        ]
        # Dispatch all events together: a journal written between two of them would lack the processes of later tasks.
        self._dispatcher.dispatch(events)
        for task in self.tasks.values():
            if task.process is not None and task.pidfd is not None:
                self.history.record("adopted", task=task.spec.short, detail=f"pid {task.process.pid}")
        with suppress(ClusterError, OSError):  # the earlier agent's journal stays, until the disk has room again
            self.write_journal()  # without the changes that the earlier agent appended
            if record.secrets != self._secrets.path:  # the earlier agent had another XDG_RUNTIME_DIR
                record.secrets.unlink(missing_ok=True)
        await asyncio.gather(*(self.health.check(task) for task in self.tasks.values() if task.pidfd is not None))

    def view(self, record: Record) -> None:
        """Show the tasks as a journal records them; they stay the tasks of the agent that has written it."""
        self.topology = record.topology
        for task in record.topology.on(self.host):
            each, runtime = record.tasks[task.name], self._make_runtime(task)
            runtime.started, runtime.last_exit = each.started, each.last_exit
            runtime.machine, _ = restore(
                runtime.machine, each, time.monotonic(), probes=settings.FAILED_PROBES_MAX_STARTING
            )
            runtime.process = each.process
            self.tasks[task.name] = runtime

    def _restore_task(self, task: TaskRuntime, record: TaskRecord) -> TaskEvent | None:
        """Restore the state of a task from the journal, and watch its process if it has one.

        Return the event that must be dispatched to the task; None for no event.
        """
        record = drop_unreleased(record, self._folder.journal.unreleased)
        task.started, task.last_exit, task.generation = record.started, record.last_exit, record.generation
        probes = int(max(0.0, time.time() - record.started) / settings.HEALTH_INTERVAL_SECONDS)
        task.machine, event = restore(task.machine, record, time.monotonic(), probes)
        if record.process is not None:
            self._launcher.watch(task, record.process)
        self._launcher.reserve_port(task)
        self._dispatcher.set_timer(task)
        return event

    def deleted_log_warning(self) -> list[str]:
        """Return a warning that names the running tasks whose log buffer was deleted, so that their output is lost.

        The list has one sentence, or is empty if no output is lost.
        """
        running = [task for task in self.tasks.values() if task.process is not None]
        names = [task.spec.short for task in running if not task.log_buffer.exists()]
        return [f"the output of {', '.join(names)} is lost until they are restarted"] if names else []

    def generations(self) -> dict[str, int]:
        """Return, by task name, the topology generation in which each task that has a process was started."""
        return {name: task.generation for name, task in self.tasks.items() if task.process is not None}

    async def stop(self, grace: float, names: Collection[str] | None = None) -> None:
        """Stop tasks and wait until they have stopped. The ps stop last, because other tasks use their variables.

        `grace` is the time between SIGTERM and SIGKILL in seconds. `names` is None for all tasks.
        """
        chosen = [task for name, task in self.tasks.items() if names is None or name in names]
        for task in chosen:
            task.machine = replace(task.machine, stop_timeout=grace)
        for ps in (False, True):
            tasks = [task for task in chosen if (task.spec.job == PS_JOB) is ps]
            self._dispatcher.dispatch([(task, TaskEvent.STOP) for task in tasks])
            while any(task.machine.state not in TERMINAL_STATES for task in tasks):
                await self.changed.wait_for_change(self.changed.count)
                self._dispatcher.dispatch(
                    [(task, TaskEvent.STOP) for task in tasks]
                )  # a task may have been restarted meanwhile

    def shorten_grace(self, grace: float) -> None:
        """Limit the grace period of tasks that are being stopped, or will be stopped later.

        `grace` is the maximum number of seconds until SIGKILL, counted from now or from a later stop.
        """
        for task in self.tasks.values():
            task.machine = replace(task.machine, stop_timeout=min(task.machine.stop_timeout, grace))
        stopping = [task for task in self.tasks.values() if task.machine.state is TaskState.STOPPING]
        self._dispatcher.dispatch([(task, TaskEvent.STOP) for task in stopping])

    def restart(self, names: Iterable[str], grace: float) -> None:
        """Restart tasks, all at the same time: starting servers do not wait for each other.

        Tasks without a process are only started. `grace` is the time between SIGTERM and SIGKILL in seconds.
        """
        tasks = [self.tasks[name] for name in names]
        for task in tasks:
            task.machine = replace(task.machine, stop_timeout=grace)
        self._dispatcher.dispatch((task, TaskEvent.RESTART) for task in tasks)

    def _set_topology(self, topology: ClusterTopology | None) -> None:
        before, self.topology = self.tasks, topology
        self.tasks = {}
        for task in topology.on(self.host) if topology else ():
            runtime = before.get(task.name)  # reuse it: the callbacks that watch its process refer to it
            if runtime is None:
                runtime = self._make_runtime(task)
            runtime.spec, runtime.machine = task, replace(runtime.machine, policy=task.restart)
            self.tasks[task.name] = runtime
        if topology:
            self._log_collector.start(topology.logs)

    def _make_runtime(self, task: Task) -> TaskRuntime:
        return TaskRuntime(task, TaskStateMachine(task.restart), self._folder.log_buffer_of(task.short))

    @property
    def is_journal_outdated(self) -> bool:
        """Whether the last snapshot could not be written."""
        return bool(self._dispatcher.journal_obstacle)

    def write_journal(self) -> None:
        """Write a snapshot to the journal: the topology and the state of every task."""
        try:
            self._write_snapshot()
        except ClusterError as error:
            self._dispatcher.journal_obstacle = explain(error, self._folder.path)
            raise
        self._dispatcher.journal_obstacle = ""

    def _write_snapshot(self) -> None:
        assert self.topology is not None, "events come to tasks, and tasks from a topology"
        tasks = {name: to_record(task) for name, task in self.tasks.items()}
        try:
            self._folder.repair()
            # Write the secret values first: without them the next agent could not start the tasks.
            topology = self._secrets.redact(self.topology, self.next)
            following = without_values(self.next) if self.next else None
            private = self._network.private
            self._folder.journal.write(Record(topology, tasks, self._secrets.path, following, private, PROTOCOL))
        except OSError as error:
            raise journal_error(self._folder.journal.path, error) from error
        self._network.release()
        with suppress(OSError):  # the disk is full: the next snapshot tries again
            self._secrets.prune()

    def _dispatch(self, task: TaskRuntime, event: TaskEvent) -> None:
        self._dispatcher.dispatch([(task, event)])
