"""What an agent does for each call of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfcluster.agent import logs
from tfcluster.agent.examination import examine
from tfcluster.agent.folder import StateFolder
from tfcluster.agent.gpus import gpu_ids
from tfcluster.agent.health import Prober
from tfcluster.agent.loop import for_ever
from tfcluster.agent.ports import Ports
from tfcluster.agent.runs import Runs
from tfcluster.agent.supervised import Supervised
from tfcluster.agent.supervisor import HEALTH_INTERVAL, Supervisor
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.model.counting import plural
from tfcluster.model.devices import select
from tfcluster.model.layout import Layout, matching_tasks
from tfcluster.model.plan import already_up
from tfcluster.model.states import ClusterState, TaskState, cluster_state
from tfcluster.model.status import ClusterStatus, HostStatus
from tfcluster.places import LOCAL_HOST
from tfcluster.protocol.framing import Message
from tfcluster.protocol.messages import Call, Request, event, reply
from tfcluster.runtime.c_api import TensorFlow, find_library
from tfcluster.runtime.driver import Job

_PROBE_BEFORE_RUN = 1.0


class Service:
    """The agent of one cluster on one host.

    Attributes:
        quitting: Set when the agent has nothing left to do.
        awaiting: Without a cluster yet, but prepared for the one that the next request brings.
    """

    def __init__(self, cluster: str, folder: StateFolder) -> None:
        self.quitting = asyncio.Event()
        self.awaiting = False
        self._cluster = cluster
        self._folder = folder
        self._ports = Ports()
        self._prober = Prober(f"tfcluster: {cluster} prober")
        self._supervisor = Supervisor(folder, self._prober, self._load)
        self._runs = Runs(f"tfcluster: {cluster} interpreter", folder)
        self._tensorflow: TensorFlow | None = None
        self._going_down: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether there is no cluster to care for."""
        return self._supervisor.layout is None

    async def adopt(self) -> None:
        """Take over what an earlier agent left, if it left something."""
        record = self._folder.journal.read()
        if record is not None:
            self._prober.start()
            self._supervisor.history.record("agent started", detail=f"pid {os.getpid()}, the last one died")
            with contextlib.suppress(ClusterError):  # also without TensorFlow, what runs can be watched and stopped
                self._load()
            await self._supervisor.adopt(record)

    async def watch(self) -> None:
        """Watch the tasks until the agent ends."""
        changed = self._supervisor.changed
        await asyncio.gather(
            for_ever(self._supervisor.check_all, lambda: asyncio.sleep(HEALTH_INTERVAL)),
            for_ever(self._react_to_changes, lambda: changed.since(changed.count)),
        )

    def stop(self) -> None:
        """Let go of everything but the tasks' log files and the runs' folders."""
        self._prober.stop()
        self._runs.stop()
        self._ports.keep_only(())
        self._folder.leave()

    def answer(self, request: Request) -> AsyncIterator[Message]:
        """The lines that answer a request.

        Raises:
            ClusterError: While iterating: the request cannot be carried out.
        """
        answers: dict[Call, Callable[..., AsyncIterator[Message]]] = {
            Call.PREPARE: self._prepare,
            Call.APPLY: self._apply,
            Call.WATCH: self._watch,
            Call.STATUS: self._status,
            Call.DOWN: self._down,
            Call.LOGS: self._logs,
            Call.EVENTS: self._events,
            Call.RUN: self._run,
            Call.CANCEL: self._cancel,
        }
        return answers[request.call](**request.arguments)

    async def _prepare(self, layout: dict[str, Any], dry: bool) -> AsyncIterator[Message]:
        self._refuse_when_going_down()
        self._prober.start()
        tensorflow = self._load()
        found = self._supervisor.layout
        if found is None:
            choices = examine(Layout.from_json(layout), self._ports, gpu_ids())
            self.awaiting = self.awaiting or not dry
            yield reply({"tensorflow": tensorflow.version, "choices": asdict(choices), "found": None})
        else:
            up = {"layout": found.to_json(), "status": self._cluster_status().to_json()}
            yield reply({"tensorflow": tensorflow.version, "choices": None, "found": up})

    async def _apply(self, wanted: dict[str, Any], layout: dict[str, Any], start: list[str]) -> AsyncIterator[Message]:
        self._refuse_when_going_down()
        complete, found = Layout.from_json(layout), self._supervisor.layout
        if found is None:
            self._supervisor.history.record("up", detail=f"{plural(len(start), 'task')}, agent {os.getpid()}")
            self._ports.keep_only([task.port for task in complete.tasks if task.port])
        elif not Layout.from_json(wanted).same_cluster_as(found):  # another `up` was first
            raise already_up(complete, found)
        self._supervisor.apply(complete, start)
        yield reply({})

    async def _watch(self, timeout: float) -> AsyncIterator[Message]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            seen = self._supervisor.changed.count
            yield event(self._cluster_status().to_json())
            try:
                await asyncio.wait_for(self._supervisor.changed.since(seen), deadline - loop.time())
            except asyncio.TimeoutError:
                yield reply({})
                return

    async def _status(self) -> AsyncIterator[Message]:
        yield reply(self._cluster_status().to_json())

    async def _down(self, grace: float) -> AsyncIterator[Message]:
        self._layout()
        if self._going_down is None:  # goes on also when the command that asked for it dies
            self._going_down = asyncio.ensure_future(self._stop_all(grace))
        going_down = self._going_down
        while not going_down.done():
            seen = self._supervisor.changed.count
            yield event(self._cluster_status().to_json())
            changed = asyncio.ensure_future(self._supervisor.changed.since(seen))
            await asyncio.wait({going_down, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        going_down.result()
        yield reply({})

    async def _stop_all(self, grace: float) -> None:
        try:
            await self._runs.cancel_all()
            await self._supervisor.stop(grace)
        except BaseException:
            self._going_down = None  # what still runs is still ours, and the next `down` tries again
            raise
        self._supervisor.history.record("down")
        # While the agent still ends its helpers, the cluster is down already for every command that looks.
        self._folder.journal.remove()
        self.quitting.set()

    async def _logs(self, tasks: list[str], lines: int | None, follow: bool) -> AsyncIterator[Message]:
        async for short, line in self._lines(self._log_files(tasks), lines, follow):
            yield event({"task": short, "line": line})
        yield reply({})

    async def _events(self, lines: int | None, follow: bool) -> AsyncIterator[Message]:
        async for _, line in self._lines({"": self._folder.events}, lines, follow):
            yield event(json.loads(line))
        yield reply({})

    async def _lines(
        self, paths: Mapping[str, Path], lines: int | None, follow: bool
    ) -> AsyncIterator[tuple[str, str]]:
        """Lines of files with their keys: the last of each, and then, to follow, those that come."""
        ends = {}
        for key, path in paths.items():
            start, ends[key] = logs.span(path, lines, partial=not follow)
            async for line in logs.lines_between(path, start, ends[key]):
                yield key, line
        if follow:
            async for key, line in logs.follow_all(paths, ends, until=self.quitting):
                yield key, line

    async def _run(
        self,
        program: str,
        parameters: dict[str, Any],
        patterns: list[str],
        gpus: int | None,
        strict: bool,
        timeout: float | None,
    ) -> AsyncIterator[Message]:
        self._refuse_when_going_down()
        layout = self._layout()
        _refuse_when_down(await self._supervisor.check_now(_PROBE_BEFORE_RUN))
        self._refuse_when_going_down()
        found = [device for task in self._supervisor.tasks.values() for device in task.devices]
        selection = select(found, patterns=patterns, gpus=gpus, strict=strict)
        identity = self._new_run(program)
        job = Job(
            run=identity,
            cluster=self._cluster,
            program=program,
            folder=str(self._folder.runs / identity),
            addresses=layout.addresses(),
            devices=[device.name for device in selection.devices],
            parameters=parameters,
            notes=list(selection.notes),
        )
        run = self._runs.start(job, timeout)
        try:
            async for each in self._runs.follow(run):
                yield event(each)
        finally:
            # Nothing, unless the command has gone without a word (a closed terminal): nobody waits for the result.
            self._runs.cancel(identity)
        yield reply({})

    async def _cancel(self, run: str) -> AsyncIterator[Message]:
        self._runs.cancel(run)
        yield reply({})

    def _new_run(self, program: str) -> str:
        """A new run's id, with its folder made."""
        identity = f"{program}-{secrets.token_hex(2)}"
        while not self._runs.make_folder(identity):
            # Four digits are easy to type; an earlier run has them, so more are needed by now.
            identity = f"{program}-{secrets.token_hex(4)}"
        return identity

    def _load(self) -> TensorFlow:
        if self._tensorflow is None:
            self._tensorflow = TensorFlow(find_library())
        return self._tensorflow

    def _react_to_changes(self) -> None:
        """Warm the interpreter up once the cluster is ready; end the runs of tasks that are no longer."""
        for task in self._supervisor.tasks.values():
            if task.machine.state is not TaskState.READY:
                self._runs.fail_those_on(task.task.name, task.trouble())
        states = [task.machine.state for task in self._supervisor.tasks.values()]
        if states and cluster_state(states) is ClusterState.RUNNING and self._going_down is None:
            self._runs.warm_up()

    def _refuse_when_going_down(self) -> None:
        if self._going_down is not None:
            raise ClusterError(
                f"cluster {self._cluster!r} is going down", hint="Try again when `tfcluster down` is done."
            )

    def _layout(self) -> Layout:
        if self._supervisor.layout is None:
            raise ClusterError(
                f"cluster {self._cluster!r} is not running",
                hint="Start it with `tfcluster up`.",
                exit_code=ExitCode.NOT_RUNNING,
            )
        return self._supervisor.layout

    def _cluster_status(self) -> ClusterStatus:
        layout = self._layout()
        tasks = tuple(task.status() for task in self._supervisor.tasks.values())
        version = self._tensorflow.version if self._tensorflow else None
        return ClusterStatus(
            cluster=layout.cluster,
            state=cluster_state([task.state for task in tasks]),
            spec=layout.spec,
            hosts=(HostStatus(LOCAL_HOST, "up", os.getpid(), version),),
            tasks=tasks,
            runs=tuple(run.status() for run in self._runs.runs.values()),
        )

    def _log_files(self, wanted: Sequence[str]) -> dict[str, Path]:
        """The log files of tasks by short name: of the cluster that is up, else of the one that was."""
        layout = self._supervisor.layout
        names = [task.short for task in layout.tasks] if layout else self._folder.logged_tasks()
        return {short: self._folder.log_of(short) for short in matching_tasks(wanted, names)}


def _refuse_when_down(tasks: Sequence[Supervised]) -> None:
    if tasks:
        raise ClusterError(
            "; ".join(task.trouble() for task in tasks),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` what one said last.",
            exit_code=ExitCode.UNHEALTHY,
        )
