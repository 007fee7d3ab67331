"""Carries out what the state machines of the tasks decide: forks, signals, timers, health checks, journal."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tfcluster.agent import children
from tfcluster.agent.folder import StateFolder
from tfcluster.agent.journal import Record
from tfcluster.agent.logs.history import History
from tfcluster.agent.logs.keeper import LogKeeper
from tfcluster.agent.notice import Notice
from tfcluster.agent.ports import Ports
from tfcluster.agent.tasks.adoption import recorded, resumed
from tfcluster.agent.tasks.health import Prober, Verdict
from tfcluster.agent.tasks.machine import Action, Event, Machine
from tfcluster.agent.tasks.memory import MemoryWatch
from tfcluster.agent.tasks.story import story
from tfcluster.agent.tasks.supervised import Supervised
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.devices import Device
from tfcluster.model.layout import PS_JOB, Layout
from tfcluster.model.states import AT_REST, WITH_PROCESS, TaskState
from tfcluster.model.status import LastExit
from tfcluster.process import ProcessId, reason, send, was_killed
from tfcluster.protocol.framing import Message
from tfcluster.runtime.c_api import TensorFlow
from tfcluster.runtime.logs.spool import prepare
from tfcluster.runtime.server import serve

#: Seconds between two health checks of a task.
HEALTH_INTERVAL = 2.0
# Less than the interval: the check of one interval has ended when that of the next is due.
_HEALTH_TIMEOUT = 1.5
_ASK_AGAIN_SECONDS, _ASK_AGAIN_TIMES = 0.05, 20

#: What is said of a process that its agent ended because of an event.
_WHY_ENDED = {
    Event.MISSED: "it did not answer, so its agent ended it",
    Event.RESTART: "`tfcluster restart` ended it",
}


class Supervisor:
    """The tasks of one cluster on this host.

    Attributes:
        layout: The cluster; None until there is one.
        tasks: Its tasks, by name.
        changed: Told whenever a task's state changes.
        history: What happened and why.
    """

    def __init__(
        self,
        folder: StateFolder,
        ports: Ports,
        prober: Prober,
        keeper: LogKeeper,
        load: Callable[[], TensorFlow],
    ) -> None:
        self.layout: Layout | None = None
        self.tasks: dict[str, Supervised] = {}
        self.changed = Notice()
        self.history = History(folder.events)
        self._folder = folder
        self._ports = ports
        self._prober = prober
        self._keeper = keeper
        self._load = load
        self._background: set[asyncio.Task[None]] = set()

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

    def start_helpers(self) -> None:
        """Fork the prober early, so that it has imported gRPC when it is needed.

        Raises:
            OSError: It cannot be forked.
        """
        self._prober.start()

    def apply(self, layout: Layout, start: Iterable[str]) -> None:
        """Take a layout over in place of the one there is, if any, and start tasks of it.

        Args:
            layout: The cluster with every port chosen. What of the one before it no longer has is at rest, and so is
                what it has otherwise.
            start: Names of the tasks to start.

        Raises:
            ClusterError: The journal cannot be written; all is as before.
        """
        before = self.layout
        self._take(layout)
        try:
            self.write_journal()
        except ClusterError:
            self._take(before)
            raise
        self._feed_all((self.tasks[name], Event.START) for name in start)

    async def adopt(self, record: Record) -> None:
        """Go on with what an earlier agent recorded: watch what still runs, restart by policy what does not.

        Returns when every task that still runs has been asked whether it answers.
        """
        self._take(record.layout)
        events = []
        for name, known in record.tasks.items():
            task = self.tasks[name]
            task.started, task.last_exit, task.generation = known.started, known.last_exit, known.generation
            task.machine, owed = resumed(task.machine, known, time.monotonic())
            if owed is not None:
                events.append((task, owed))
            if known.process is not None:
                self._watch(task, known.process)
            self._hold_port(task)
            self._set_timer(task)
        # All at once: a journal written between two of them would not know the processes of the later ones.
        self._feed_all(events)
        for task in self.tasks.values():
            if task.process is not None and task.pidfd is not None:
                self.history.record("adopted", task=task.task.short, detail=f"pid {task.process.pid}")
        await asyncio.gather(*(self._check(task) for task in self.tasks.values() if task.pidfd is not None))

    def lost_output(self) -> list[str]:
        """In a sentence whose output is lost, as somebody has deleted what they print into; none where it is nobody's."""
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

    def check_all(self) -> None:
        """Ask every task whether it answers."""
        for task in self.tasks.values():
            task.sample_use()
            if task.machine.state in WITH_PROCESS and not task.being_checked:
                self._in_background(self._check(task))

    async def check_now(self, timeout: float) -> list[Supervised]:
        """Ask every task at once; those that are not ready or are silent for `timeout` seconds."""
        tasks = list(self.tasks.values())
        asked = [task for task in tasks if task.machine.state is TaskState.READY]
        answers = await asyncio.gather(*(self._prober.ask(task.task.address, timeout) for task in asked))
        silent = set()
        for task, answer in zip(asked, answers, strict=True):
            if answer.verdict is Verdict.ANSWERED:
                task.devices = answer.devices
            elif answer.verdict is Verdict.SILENT:
                silent.add(id(task))
        return [task for task in tasks if task not in asked or id(task) in silent]

    async def devices_now(self, timeout: float) -> tuple[list[Device], list[str]]:
        """The devices that the tasks name when they are asked now, and why some tasks name none.

        Args:
            timeout: Seconds that they have to answer.
        """
        silent = await self.check_now(timeout)
        answered = [task for task in self.tasks.values() if task not in silent]
        return [device for task in answered for device in task.devices], [task.trouble() for task in silent]

    def _take(self, layout: Layout | None) -> None:
        before, self.layout = self.tasks, layout
        self.tasks = {}
        for task in layout.tasks if layout else ():
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
            self._folder.journal.write(Record(self.layout, tasks))
        except OSError as error:
            raise ClusterError(f"{self._folder.journal.path}: cannot write the journal: {error.strerror}") from error

    def _feed(self, task: Supervised, event: Event) -> None:
        self._feed_all([(task, event)])

    def _feed_all(self, events: Iterable[tuple[Supervised, Event]]) -> None:
        """Feed events to their machines; what changes because of them shares one writing of the journal."""
        forked: list[children.Child] = []
        changed = False
        for task, event in events:
            before = task.machine
            task.machine, action = before.after(event, time.monotonic(), random.random())
            if action is Action.SPAWN:
                self._try_to_fork(task, forked)
            elif action is not None and task.pidfd is not None:
                send(task.pidfd, signal.SIGTERM if action is Action.TERMINATE else signal.SIGKILL)
                task.killed = task.killed or action is Action.KILL
                if event in _WHY_ENDED:
                    task.report = _WHY_ENDED[event]
            self._set_timer(task)
            if told := story(task, before, event):
                self.history.record(told[0], task=task.task.short, detail=told[1])
            is_news = (task.machine.state, task.machine.wanted) != (before.state, before.wanted)
            changed = changed or is_news
        if not changed:
            return
        self.changed.tell()
        try:
            self.write_journal()
        except ClusterError as error:
            for child in forked:  # nobody would know of them: have them end
                child.hang_up()
            if forked:
                raise
            # What ended or is ending needs no record: the next agent finds it gone.
            print(error.message, file=sys.stderr, flush=True)
        for child in forked:
            # It stands in the journal now: if this agent dies, the next one knows of it.
            child.send({})

    def _set_timer(self, task: Supervised) -> None:
        if task.timer is not None:
            task.timer.cancel()
            task.timer = None
        if task.machine.wake_at is not None:
            delay = max(0.0, task.machine.wake_at - time.monotonic())
            task.timer = asyncio.get_running_loop().call_later(delay, self._feed, task, Event.DUE)

    def _try_to_fork(self, task: Supervised, forked: list[children.Child]) -> None:
        """Fork the task's server; where that fails the task counts as one that died, and is tried again by policy."""
        assert self.layout is not None, "a task belongs to a layout"
        task.started, task.generation = time.time(), self.layout.generation
        task.report = ""
        task.killed = False
        try:
            self._folder.mend()  # its log goes there
            child = self._fork(task)
        except (OSError, ClusterError) as error:
            task.report = f"no process could be started for it: {error}"
            asyncio.get_running_loop().call_soon(self._note_end, task, None)
            return
        self._has_process(task, child.process, child.pidfd)
        child.on_message(partial(self._reported, task), lambda: None)
        forked.append(child)

    def _fork(self, task: Supervised) -> children.Child:
        assert self.layout is not None, "a task belongs to a layout"
        spool = self._folder.spool_of(task.task.short)
        prepare(spool, self._folder.log_of(task.task.short))
        body = partial(serve, self._load(), self.layout, task.task, spool)
        return children.fork_watched(body, partial(self._ended, task))

    def _watch(self, task: Supervised, process: ProcessId) -> None:
        self._has_process(task, process, children.when_ended(process, partial(self._ended, task)))

    def _has_process(self, task: Supervised, process: ProcessId, pidfd: int | None) -> None:
        task.process, task.pidfd = process, pidfd
        task.memory = MemoryWatch(process.pid, time.monotonic())

    def _reported(self, task: Supervised, message: Message) -> None:
        if "error" in message:
            task.report = message["error"]
        else:
            self._in_background(self._check_until_ready(task))

    def _hold_port(self, task: Supervised) -> None:
        """Hold a task's port; while the server that listens on it is an adopted one, only reserve it."""
        if task.task.port is None:
            return
        with suppress(OSError):  # out of descriptors, it is the server that must have them
            self._ports.reserve(task.task.port)
            if task.process is None:
                self._ports.hold(task.task.port)

    def _ended(self, task: Supervised, status: int | None) -> None:
        by_kernel = ""
        if task.memory is not None and not task.killed and was_killed(status):
            by_kernel = task.memory.named()
        task.forget_process()
        if status is None:
            task.report = task.report or "its exit status is not known: an earlier agent had started it"
        # The report may still lie unread behind the news of the end.
        asyncio.get_running_loop().call_soon(self._note_end, task, status, by_kernel)
        if task.machine.wanted:
            self._hold_port(task)  # at once: nobody listens on it now

    def _note_end(self, task: Supervised, status: int | None, by_kernel: str = "") -> None:
        task.last_exit = LastExit(reason(status) + by_kernel, time.time(), task.report)
        clean = status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        self._feed(task, Event.CLEAN_EXIT if clean else Event.FAILED_EXIT)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        doing = asyncio.get_running_loop().create_task(work)
        self._background.add(doing)
        doing.add_done_callback(self._background.discard)

    async def _check(self, task: Supervised, *, patient: bool = False) -> None:
        asked_of = task.process
        task.being_checked = True
        try:
            answer = await self._prober.ask(task.task.address, _HEALTH_TIMEOUT)
        finally:
            task.being_checked = False
        if asked_of is None or task.process != asked_of:
            return  # the answer, or silence, of a process that is gone says nothing of its successor
        if answer.verdict is Verdict.UNKNOWN or (patient and answer.verdict is Verdict.SILENT):
            return
        if answer.verdict is Verdict.ANSWERED:
            task.devices = answer.devices
        self._feed(task, Event.ANSWERED if answer.verdict is Verdict.ANSWERED else Event.MISSED)

    async def _check_until_ready(self, task: Supervised) -> None:
        """Ask a task that says it serves, and again soon where a busy machine is slower to let it.

        Somebody waits for it. Only the checks at the interval count as missed.
        """
        process = task.process
        for _ in range(_ASK_AGAIN_TIMES):
            await self._check(task, patient=True)
            if task.process != process or task.machine.state is not TaskState.STARTING:
                return
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
