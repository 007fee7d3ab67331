"""Carries out what the state machines of the tasks decide: processes, signals, timers, journal."""

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
from tfcluster.process_handle import send
from tfcluster.processes.c_api import TensorFlow

#: Seconds between TERM and KILL for a task that is stopped while nobody says how many.
STOP_GRACE = 5.0
#: What is said of a process that its agent ended because of an event.
_WHY_ENDED = {
    TaskEvent.PROBE_FAILED: "it did not answer, so its agent ended it",
    TaskEvent.RESTART: "`tfcluster restart` ended it",
}


class Supervisor:
    """The tasks of one cluster on this host.

    Attributes:
        host: What the cluster calls this host.
        topology: The whole cluster; None until there is one.
        next: The topology that is to replace it once some tasks have stopped; None where nothing is to be changed.
        tasks: Its tasks here, by name.
        changed: Told whenever a task's state changes.
        history: What happened and why.
        checks: Whether they answer.
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
        """The cluster.

        Raises:
            ClusterError: There is none.
        """
        if self.topology is None:
            raise ClusterError(
                f"cluster {self._folder.path.parent.name!r} is not running",
                hint="Start it with `tfcluster up`.",
                exit_code=ExitCode.NOT_RUNNING,
            )
        return self.topology

    def apply(self, topology: ClusterTopology, start: Iterable[str]) -> None:
        """Take a topology over in place of the one there is, if any, and start tasks of it.

        The journal is written once, with the new topology and the new processes: an agent that dies before leaves the
        old cluster, one that dies after leaves the new one, whose tasks the next agent starts where this one has not.

        Args:
            topology: The cluster with every port chosen. What of the one before it no longer has is at rest, and so is
                what it has otherwise.
            start: Names of the tasks to start.

        Raises:
            ClusterError: The journal cannot be written; all is as before.
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
        """Go on with what an earlier agent recorded: watch what still runs, restart by policy what does not.

        Returns when every task that still runs has been asked whether it answers.
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
        # All at once: a journal written between two of them would not know the processes of the later ones.
        self._feed_all(events)
        for task in self.tasks.values():
            if task.process is not None and task.pidfd is not None:
                self.history.record("adopted", task=task.task.short, detail=f"pid {task.process.pid}")
        if record.secrets != self._secrets.path:  # of an agent with another XDG_RUNTIME_DIR
            with suppress(ClusterError, OSError):
                self.write_journal()
                record.secrets.unlink(missing_ok=True)
        await asyncio.gather(*(self.checks.one(task) for task in self.tasks.values() if task.pidfd is not None))

    def lost_output(self) -> list[str]:
        """In a sentence whose output is lost, as somebody has deleted what they print into; nothing for nobody's."""
        lost = [
            task.task.short for task in self.tasks.values() if task.process is not None and not task.log_buffer.exists()
        ]
        return [f"what {', '.join(lost)} print is lost until they are restarted"] if lost else []

    def generations(self) -> dict[str, int]:
        """The generation of the topology that a task was started in, by name, for those that have a process."""
        return {name: task.generation for name, task in self.tasks.items() if task.process is not None}

    async def stop(self, grace: float, names: Collection[str] | None = None) -> None:
        """Stop tasks, the ps last: whoever still computes needs its variables.

        Args:
            grace: Seconds between TERM and KILL.
            names: Names of the tasks; None for all.
        """
        chosen = [task for name, task in self.tasks.items() if names is None or name in names]
        for task in chosen:
            task.machine = replace(task.machine, grace=grace)
        for ps in (False, True):
            tasks = [task for task in chosen if (task.task.job == PS_JOB) is ps]
            self._feed_all([(task, TaskEvent.STOP) for task in tasks])
            while any(task.machine.state not in TERMINAL_STATES for task in tasks):
                await self.changed.since(self.changed.count)
                self._feed_all([(task, TaskEvent.STOP) for task in tasks])  # one may have been started again meanwhile

    def shorten_grace(self, grace: float) -> None:
        """Let no task that is being stopped, now or later, have more than `grace` seconds from now on."""
        for task in self.tasks.values():
            task.machine = replace(task.machine, grace=min(task.machine.grace, grace))
        stopping = [task for task in self.tasks.values() if task.machine.state is TaskState.STOPPING]
        self._feed_all([(task, TaskEvent.STOP) for task in stopping])

    def restart(self, names: Iterable[str], grace: float) -> None:
        """End tasks and start them anew, all at once: servers wait for nobody when they start.

        Args:
            names: Names of the tasks; those without a process are simply started.
            grace: Seconds between TERM and KILL.
        """
        tasks = [self.tasks[name] for name in names]
        for task in tasks:
            task.machine = replace(task.machine, grace=grace)
        self._feed_all((task, TaskEvent.RESTART) for task in tasks)

    def _take(self, topology: ClusterTopology | None) -> None:
        before, self.topology = self.tasks, topology
        self.tasks = {}
        for task in topology.on(self.host) if topology else ():
            kept = before.get(task.name)  # what watches its process knows it
            if kept is None:
                kept = TaskRuntime(task, TaskStateMachine(task.restart), self._folder.log_buffer_of(task.short))
            kept.task, kept.machine = task, replace(kept.machine, policy=task.restart)
            self.tasks[task.name] = kept
        if topology:
            self._keeper.start(topology.logs)

    def write_journal(self) -> None:
        """Record where every task stands.

        Raises:
            ClusterError: The record cannot be written.
        """
        assert self.topology is not None, "events come to tasks, and tasks from a topology"
        tasks = {name: recorded(task) for name, task in self.tasks.items()}
        try:
            self._folder.repair()
            # The values first: without them the next agent could not start the tasks.
            hidden = self._secrets.hidden(self.topology, self.next)
            following = without_values(self.next) if self.next else None
            self._folder.journal.write(Record(hidden, tasks, self._secrets.path, following))
        except OSError as error:
            path = error.filename or self._folder.journal.path
            raise ClusterError(f"{path}: cannot write the journal: {error.strerror}") from error

    def _feed(self, task: TaskRuntime, event: TaskEvent) -> None:
        self._feed_all([(task, event)])

    def _feed_all(self, events: Iterable[tuple[TaskRuntime, TaskEvent]]) -> None:
        """Feed events to their machines; what changes because of them shares one writing of the journal."""
        steps = [self._step(task, event) for task, event in events]
        if any(step.is_news for step in steps):
            try:
                self.write_journal()
            except ClusterError as error:
                forked = [step.child for step in steps if step.child is not None]
                for child in forked:  # nobody would know of them: have them end
                    child.hang_up()
                self._tell(steps)
                if forked:
                    raise
                # What ended or is ending needs no record: the next agent finds it gone.
                print(error.message, file=sys.stderr, flush=True)
                return
        self._finish(steps)

    def _step(self, task: TaskRuntime, event: TaskEvent) -> Step:
        """Feed an event to a task's machine and do what that decides; a process that is forked waits to be released."""
        before, child = task.machine, None
        task.machine, action = before.after(event, time.monotonic(), random.random())
        if action is Action.SPAWN:
            assert self.topology is not None, "a task belongs to a topology"
            child = self._processes.fork(task, self.topology)
        elif action is not None and task.pidfd is not None:
            send(task.pidfd, signal.SIGTERM if action is Action.TERMINATE else signal.SIGKILL)
            task.killed = task.killed or action is Action.KILL
            if event in _WHY_ENDED:
                task.report = _WHY_ENDED[event]
        self._set_timer(task)
        return Step(task, event, before, action, child, describe_transition(task, before, event))

    def _finish(self, steps: Iterable[Step]) -> None:
        """Record in the history what was done, and release what was forked.

        It stands in the journal now: if this agent dies, the next one knows of it.
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
        """Go on with a task whose wait is over, unless another process has its port."""
        if task.machine.state is TaskState.BACKING_OFF and (blocked := self._processes.blocked(task)):
            if blocked != task.report:
                self._processes.note_blocked(task, blocked)
                self.history.record("blocked", task=task.task.short, detail=blocked)
                self.changed.tell()
            self._feed(task, TaskEvent.BLOCKED)
        else:
            self._feed(task, TaskEvent.TIMER)
