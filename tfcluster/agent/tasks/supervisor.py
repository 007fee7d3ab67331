"""Supervisor of this host's tasks: carries out the actions of their state machines and writes the journal."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from tfcluster.agent.change_notifier import ChangeNotifier
from tfcluster.agent.journal_record import Record
from tfcluster.agent.logs.collector import LogCollector
from tfcluster.agent.logs.event_log import EventLog
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.secret_store import SecretStore, without_values
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.tasks.adoption import recorded, resumed, without_unstarted
from tfcluster.agent.tasks.health_monitor import HealthMonitor
from tfcluster.agent.tasks.probe_client import ProbeClient
from tfcluster.agent.tasks.state_machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.step import Step
from tfcluster.agent.tasks.task_launcher import TaskLauncher
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.agent.tasks.transition_event import describe_transition
from tfcluster.core.states import TERMINAL_STATES, TaskState
from tfcluster.core.topology import PS_JOB, ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.process_handle import send_signal
from tfcluster.processes.c_api import TensorFlow

#: The text that explains the exit of a process that the agent ended because of an event.
_WHY_ENDED = {
    TaskEvent.PROBE_FAILED: "it did not answer, so its agent ended it",
    TaskEvent.RESTART: "`tfcluster restart` ended it",
}


class Supervisor:
    """Supervises the tasks of one cluster on this host.

    Args:
        host: The name of this host in the cluster.
        folder: The cluster's state directory.
        secrets: The store of the secret values in the topology.
        ports: The allocator that reserves and holds the tasks' ports.
        prober: The client that probes the tasks.
        keeper: The supervisor of the log writer.
        load: Loads TensorFlow and returns it.

    Attributes:
        host: The name of this host in the cluster.
        topology: The topology of the whole cluster; None until there is one.
        next: The topology that will replace `topology` once some tasks have stopped; None if no change is in progress.
        tasks: The cluster's tasks on this host, by name.
        changed: Notified whenever a task's state changes.
        history: The event log, which records what happened and why.
        checks: The health monitor of the tasks.
    """

    def __init__(
        self,
        host: str,
        folder: StateDir,
        secrets: SecretStore,
        ports: PortAllocator,
        prober: ProbeClient,
        keeper: LogCollector,
        load: Callable[[], TensorFlow],
    ) -> None:
        self.host = host
        self.topology: ClusterTopology | None = None
        self.next: ClusterTopology | None = None
        self.tasks: dict[str, TaskRuntime] = {}
        self.changed = ChangeNotifier()
        self.history = EventLog(folder.events)
        self.checks = HealthMonitor(prober, lambda: self.tasks, self._feed)
        self._folder = folder
        self._secrets = secrets
        self._keeper = keeper
        self._processes = TaskLauncher(folder, ports, load, self._feed, self.checks.until_ready)

    def require_cluster(self) -> ClusterTopology:
        """Return the topology of the cluster.

        Raises:
            ClusterError: There is no cluster.
        """
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

        Args:
            topology: The new topology, with every port allocated. Tasks that it removes or changes must be stopped or
                failed already.
            start: Names of the tasks to start.

        Raises:
            ClusterError: The journal cannot be written; everything is as before.
        """
        before = self.topology, self.next, self.tasks
        attributes = [(task, vars(task).copy()) for task in self.tasks.values()]
        self._take(topology)
        self.next = None
        steps = [self._step(self.tasks[name], TaskEvent.START) for name in start]
        try:
            self.write_journal()
        except ClusterError:
            for step in steps:
                step.undo()
            self.topology, self.next, self.tasks = before
            for task, values in attributes:
                vars(task).update(values)
            raise
        self._finish(steps)

    async def adopt(self, record: Record) -> None:
        """Adopt the tasks in the journal of an earlier agent: watch those that still run, restart others by policy.

        The method returns after every task that still runs has been probed.

        Args:
            record: The content of the journal.
        """
        self._take(self._secrets.shown(record.topology, record.secrets))
        if record.next is not None:
            self.next = self._secrets.shown(record.next, record.secrets)
        events = []
        for name, written in record.tasks.items():
            task, known = self.tasks[name], without_unstarted(written)
            task.started, task.last_exit, task.generation = known.started, known.last_exit, known.generation
            task.machine, owed = resumed(task.machine, known, time.monotonic())
            if owed is not None:
                events.append((task, owed))
            if known.process is not None:
                self._processes.watch(task, known.process)
            self._processes.hold_port(task)
            self._set_timer(task)
        # Dispatch all events together: a journal written between two of them would lack the processes of later tasks.
        self._feed_all(events)
        for task in self.tasks.values():
            if task.process is not None and task.pidfd is not None:
                self.history.record("adopted", task=task.task.short, detail=f"pid {task.process.pid}")
        if record.secrets != self._secrets.path:  # the earlier agent had another XDG_RUNTIME_DIR
            with suppress(ClusterError, OSError):
                self.write_journal()
                record.secrets.unlink(missing_ok=True)
        await asyncio.gather(*(self.checks.one(task) for task in self.tasks.values() if task.pidfd is not None))

    def lost_output(self) -> list[str]:
        """Return a warning that names the running tasks whose log buffer was deleted, so that their output is lost.

        Returns:
            A list with one sentence, or an empty list if no output is lost.
        """
        lost = [
            task.task.short for task in self.tasks.values() if task.process is not None and not task.log_buffer.exists()
        ]
        return [f"what {', '.join(lost)} print is lost until they are restarted"] if lost else []

    def generations(self) -> dict[str, int]:
        """Return, by task name, the topology generation in which each task that has a process was started."""
        return {name: task.generation for name, task in self.tasks.items() if task.process is not None}

    async def stop(self, grace: float, names: Collection[str] | None = None) -> None:
        """Stop tasks and wait until they have stopped. The ps stop last, because other tasks use their variables.

        Args:
            grace: Seconds between SIGTERM and SIGKILL.
            names: Names of the tasks; None for all tasks.
        """
        chosen = [task for name, task in self.tasks.items() if names is None or name in names]
        for task in chosen:
            task.machine = replace(task.machine, grace=grace)
        for ps in (False, True):
            tasks = [task for task in chosen if (task.task.job == PS_JOB) is ps]
            self._feed_all([(task, TaskEvent.STOP) for task in tasks])
            while any(task.machine.state not in TERMINAL_STATES for task in tasks):
                await self.changed.since(self.changed.count)
                self._feed_all([(task, TaskEvent.STOP) for task in tasks])  # a task may have been restarted meanwhile

    def shorten_grace(self, grace: float) -> None:
        """Limit the grace period of tasks that are being stopped, or will be stopped later.

        Args:
            grace: Maximum number of seconds until SIGKILL, counted from now or from a later stop.
        """
        for task in self.tasks.values():
            task.machine = replace(task.machine, grace=min(task.machine.grace, grace))
        stopping = [task for task in self.tasks.values() if task.machine.state is TaskState.STOPPING]
        self._feed_all([(task, TaskEvent.STOP) for task in stopping])

    def restart(self, names: Iterable[str], grace: float) -> None:
        """Restart tasks, all at the same time: starting servers do not wait for each other.

        Args:
            names: Names of the tasks. Tasks without a process are only started.
            grace: Seconds between SIGTERM and SIGKILL.
        """
        tasks = [self.tasks[name] for name in names]
        for task in tasks:
            task.machine = replace(task.machine, grace=grace)
        self._feed_all((task, TaskEvent.RESTART) for task in tasks)

    def _take(self, topology: ClusterTopology | None) -> None:
        before, self.topology = self.tasks, topology
        self.tasks = {}
        for task in topology.on(self.host) if topology else ():
            kept = before.get(task.name)  # reuse it: the callbacks that watch its process refer to it
            if kept is None:
                kept = TaskRuntime(task, TaskStateMachine(task.restart), self._folder.log_buffer_of(task.short))
            kept.task, kept.machine = task, replace(kept.machine, policy=task.restart)
            self.tasks[task.name] = kept
        if topology:
            self._keeper.start(topology.logs)

    def write_journal(self) -> None:
        """Write the state of every task, and the topology, to the journal.

        Raises:
            ClusterError: The journal cannot be written.
        """
        assert self.topology is not None, "events come to tasks, and tasks from a topology"
        tasks = {name: recorded(task) for name, task in self.tasks.items()}
        try:
            self._folder.repair()
            # Write the secret values first: without them the next agent could not start the tasks.
            hidden = self._secrets.hidden(self.topology, self.next)
            following = without_values(self.next) if self.next else None
            self._folder.journal.write(Record(hidden, tasks, self._secrets.path, following))
        except OSError as error:
            path = error.filename or self._folder.journal.path
            raise ClusterError(f"{path}: cannot write the journal: {error.strerror}") from error

    def _feed(self, task: TaskRuntime, event: TaskEvent) -> None:
        self._feed_all([(task, event)])

    def _feed_all(self, events: Iterable[tuple[TaskRuntime, TaskEvent]]) -> None:
        """Dispatch events to the tasks' state machines, and write the journal once for all changes that result."""
        steps = [self._step(task, event) for task, event in events]
        if any(step.is_news for step in steps):
            try:
                self.write_journal()
            except ClusterError as error:
                forked = [step.child for step in steps if step.child is not None]
                for child in forked:  # no journal records them: make them exit
                    child.hang_up()
                self._tell(steps)
                if forked:
                    raise
                # Processes that have exited or are exiting need no record: the next agent finds that they are gone.
                print(error.message, file=sys.stderr, flush=True)
                return
        self._finish(steps)

    def _step(self, task: TaskRuntime, event: TaskEvent) -> Step:
        """Dispatch an event to a task's state machine and carry out the resulting action.

        A process that is forked waits to be released.

        Returns:
            The transition that was made.
        """
        before, child = task.machine, None
        task.machine, action = before.after(event, time.monotonic(), random.random())
        if action is Action.SPAWN:
            assert self.topology is not None, "a task belongs to a topology"
            child = self._processes.fork(task, self.topology)
        elif action is not None and task.pidfd is not None:
            send_signal(task.pidfd, signal.SIGTERM if action is Action.TERMINATE else signal.SIGKILL)
            task.killed = task.killed or action is Action.KILL
            if event in _WHY_ENDED:
                task.report = _WHY_ENDED[event]
        self._set_timer(task)
        return Step(task, event, before, action, child, describe_transition(task, before, event))

    def _finish(self, steps: Iterable[Step]) -> None:
        """Record transitions in the event log, and release the processes that were forked.

        The journal contains the processes by now: if this agent dies, the next one can adopt them.
        """
        self._tell(steps)
        for step in steps:
            if step.child is not None:
                step.child.send({})

    def _tell(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if step.describe_transition is not None:
                self.history.record(
                    step.describe_transition[0], task=step.task.task.short, detail=step.describe_transition[1]
                )
        if any(step.is_news for step in steps):
            self.changed.tell()

    def _set_timer(self, task: TaskRuntime) -> None:
        if task.timer is not None:
            task.timer.cancel()
            task.timer = None
        if task.machine.wake_at is not None:
            delay = max(0.0, task.machine.wake_at - time.monotonic())
            task.timer = asyncio.get_running_loop().call_later(delay, self._wake, task)

    def _wake(self, task: TaskRuntime) -> None:
        """Dispatch the timer event of a task, or BLOCKED if its back-off is over and another process uses its port."""
        if task.machine.state is TaskState.BACKING_OFF and (blocked := self._processes.blocked(task)):
            if blocked != task.report:
                self._processes.note_blocked(task, blocked)
                self.history.record("blocked", task=task.task.short, detail=blocked)
                self.changed.tell()
            self._feed(task, TaskEvent.BLOCKED)
        else:
            self._feed(task, TaskEvent.TIMER)
