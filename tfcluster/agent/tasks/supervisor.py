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

from tfcluster.agent.folder import StateFolder
from tfcluster.agent.logs.history import History
from tfcluster.agent.logs.keeper import LogKeeper
from tfcluster.agent.notice import Notice
from tfcluster.agent.ports import Ports
from tfcluster.agent.record import Record
from tfcluster.agent.secret_values import SecretValues, without_values
from tfcluster.agent.tasks.adoption import recorded, resumed, without_unstarted
from tfcluster.agent.tasks.checks import Checks
from tfcluster.agent.tasks.health import Prober
from tfcluster.agent.tasks.machine import Action, Event, Machine
from tfcluster.agent.tasks.processes import Processes
from tfcluster.agent.tasks.step import Step
from tfcluster.agent.tasks.story import story
from tfcluster.agent.tasks.supervised import Supervised
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.layout import PS_JOB, Layout
from tfcluster.model.states import AT_REST, TaskState
from tfcluster.process import send
from tfcluster.runtime.c_api import TensorFlow

#: Seconds between TERM and KILL for a task that is stopped while nobody says how many.
STOP_GRACE = 5.0
#: What is said of a process that its agent ended because of an event.
_WHY_ENDED = {
    Event.MISSED: "it did not answer, so its agent ended it",
    Event.RESTART: "`tfcluster restart` ended it",
}


class Supervisor:
    """The tasks of one cluster on this host.

    Attributes:
        host: What the cluster calls this host.
        layout: The whole cluster; None until there is one.
        next: The layout that is to replace it once some tasks have stopped; None where nothing is to be changed.
        tasks: Its tasks here, by name.
        changed: Told whenever a task's state changes.
        history: What happened and why.
        checks: Whether they answer.
    """

    def __init__(
        self,
        host: str,
        folder: StateFolder,
        secrets: SecretValues,
        ports: Ports,
        prober: Prober,
        keeper: LogKeeper,
        load: Callable[[], TensorFlow],
    ) -> None:
        self.host = host
        self.layout: Layout | None = None
        self.next: Layout | None = None
        self.tasks: dict[str, Supervised] = {}
        self.changed = Notice()
        self.history = History(folder.events)
        self.checks = Checks(prober, lambda: self.tasks, self._feed)
        self._folder = folder
        self._secrets = secrets
        self._keeper = keeper
        self._processes = Processes(folder, ports, load, self._feed, self.checks.until_ready)

    def layout_that_is_up(self) -> Layout:
        """The cluster.

        Raises:
            ClusterError: There is none.
        """
        if self.layout is None:
            raise ClusterError(
                f"cluster {self._folder.path.parent.name!r} is not running",
                hint="Start it with `tfcluster up`.",
                exit_code=ExitCode.NOT_RUNNING,
            )
        return self.layout

    def apply(self, layout: Layout, start: Iterable[str]) -> None:
        """Take a layout over in place of the one there is, if any, and start tasks of it.

        The journal is written once, with the new layout and the new processes: an agent that dies before leaves the
        old cluster, one that dies after leaves the new one, whose tasks the next agent starts where this one has not.

        Args:
            layout: The cluster with every port chosen. What of the one before it no longer has is at rest, and so is
                what it has otherwise.
            start: Names of the tasks to start.

        Raises:
            ClusterError: The journal cannot be written; all is as before.
        """
        before = self.layout, self.next, self.tasks
        attributes = [(task, vars(task).copy()) for task in self.tasks.values()]
        self._take(layout)
        self.next = None
        steps = [self._step(self.tasks[name], Event.START) for name in start]
        try:
            self.write_journal()
        except ClusterError:
            for step in steps:
                step.undo()
            self.layout, self.next, self.tasks = before
            for task, values in attributes:
                vars(task).update(values)
            raise
        self._finish(steps)

    async def adopt(self, record: Record) -> None:
        """Go on with what an earlier agent recorded: watch what still runs, restart by policy what does not.

        Returns when every task that still runs has been asked whether it answers.
        """
        self._take(self._secrets.shown(record.layout, record.secrets))
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
        lost = [task.task.short for task in self.tasks.values() if task.process is not None and not task.spool.exists()]
        return [f"what {', '.join(lost)} print is lost until they are restarted"] if lost else []

    def generations(self) -> dict[str, int]:
        """The generation of the layout that a task was started in, by name, for those that have a process."""
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
            self._feed_all([(task, Event.STOP) for task in tasks])
            while any(task.machine.state not in AT_REST for task in tasks):
                await self.changed.since(self.changed.count)
                self._feed_all([(task, Event.STOP) for task in tasks])  # one may have been started again meanwhile

    def hurry(self, grace: float) -> None:
        """Let no task that is being stopped, now or later, have more than `grace` seconds from now on."""
        for task in self.tasks.values():
            task.machine = replace(task.machine, grace=min(task.machine.grace, grace))
        stopping = [task for task in self.tasks.values() if task.machine.state is TaskState.STOPPING]
        self._feed_all([(task, Event.STOP) for task in stopping])

    def restart(self, names: Iterable[str], grace: float) -> None:
        """End tasks and start them anew, all at once: servers wait for nobody when they start.

        Args:
            names: Names of the tasks; those without a process are simply started.
            grace: Seconds between TERM and KILL.
        """
        tasks = [self.tasks[name] for name in names]
        for task in tasks:
            task.machine = replace(task.machine, grace=grace)
        self._feed_all((task, Event.RESTART) for task in tasks)

    def _take(self, layout: Layout | None) -> None:
        before, self.layout = self.tasks, layout
        self.tasks = {}
        for task in layout.on(self.host) if layout else ():
            kept = before.get(task.name)  # what watches its process knows it
            if kept is None:
                kept = Supervised(task, Machine(task.restart), self._folder.spool_of(task.short))
            kept.task, kept.machine = task, replace(kept.machine, policy=task.restart)
            self.tasks[task.name] = kept
        if layout:
            self._keeper.start(layout.logs)

    def write_journal(self) -> None:
        """Record where every task stands.

        Raises:
            ClusterError: The record cannot be written.
        """
        assert self.layout is not None, "events come to tasks, and tasks from a layout"
        tasks = {name: recorded(task) for name, task in self.tasks.items()}
        try:
            self._folder.mend()
            # The values first: without them the next agent could not start the tasks.
            hidden = self._secrets.hidden(self.layout, self.next)
            following = without_values(self.next) if self.next else None
            self._folder.journal.write(Record(hidden, tasks, self._secrets.path, following))
        except OSError as error:
            path = error.filename or self._folder.journal.path
            raise ClusterError(f"{path}: cannot write the journal: {error.strerror}") from error

    def _feed(self, task: Supervised, event: Event) -> None:
        self._feed_all([(task, event)])

    def _feed_all(self, events: Iterable[tuple[Supervised, Event]]) -> None:
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

    def _step(self, task: Supervised, event: Event) -> Step:
        """Feed an event to a task's machine and do what that decides; a process that is forked waits to be released."""
        before, child = task.machine, None
        task.machine, action = before.after(event, time.monotonic(), random.random())
        if action is Action.SPAWN:
            assert self.layout is not None, "a task belongs to a layout"
            child = self._processes.fork(task, self.layout)
        elif action is not None and task.pidfd is not None:
            send(task.pidfd, signal.SIGTERM if action is Action.TERMINATE else signal.SIGKILL)
            task.killed = task.killed or action is Action.KILL
            if event in _WHY_ENDED:
                task.report = _WHY_ENDED[event]
        self._set_timer(task)
        return Step(task, event, before, action, child, story(task, before, event))

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
            if step.story is not None:
                self.history.record(step.story[0], task=step.task.task.short, detail=step.story[1])
        if any(step.is_news for step in steps):
            self.changed.tell()

    def _set_timer(self, task: Supervised) -> None:
        if task.timer is not None:
            task.timer.cancel()
            task.timer = None
        if task.machine.wake_at is not None:
            delay = max(0.0, task.machine.wake_at - time.monotonic())
            task.timer = asyncio.get_running_loop().call_later(delay, self._wake, task)

    def _wake(self, task: Supervised) -> None:
        """Go on with a task whose wait is over, unless another process has its port."""
        if task.machine.state is TaskState.BACKING_OFF and (blocked := self._processes.blocked(task)):
            if blocked != task.report:
                self._processes.note_blocked(task, blocked)
                self.history.record("blocked", task=task.task.short, detail=blocked)
                self.changed.tell()
            self._feed(task, Event.BLOCKED)
        else:
            self._feed(task, Event.DUE)
