"""The calls about runs: start one, follow it, list them, cancel one."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from tfcluster.agent.request_stream import RequestStream
from tfcluster.agent.runs.remote_tasks import RemoteTaskMonitor
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.run_manager import RunManager
from tfcluster.agent.runs.run_stream import from_place
from tfcluster.agent.runs.uploads import receive, validate_name
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.devices import Device, Selection, select
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.processes.run_driver import RunSpec
from tfcluster.protocol.api import event, reply
from tfcluster.protocol.codec import Message

_PROBE_BEFORE_RUN = 1.0
_POLL_SECONDS = 0.05


class RunHandlers:
    """Answers the calls about runs.

    Args:
        folder: The cluster's state folder.
        supervisor: The tasks to run on.
        elsewhere: The tasks on other hosts.
        runs: The runs.
        refuse_when_going_down: Raises a ClusterError while the cluster goes down.
    """

    def __init__(
        self,
        folder: StateDir,
        supervisor: Supervisor,
        elsewhere: RemoteTaskMonitor,
        runs: RunManager,
        refuse_when_going_down: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._elsewhere = elsewhere
        self._runs = runs
        self._refuse_when_going_down = refuse_when_going_down

    async def run(
        self,
        incoming: RequestStream,
        program: str,
        parameters: dict[str, Any],
        patterns: list[str],
        gpus: int | None,
        strict: bool,
        timeout: float | None,
        log_placement: bool,
        detach: bool,
        owned: bool,
        sent: str | None,
    ) -> AsyncIterator[Message]:
        """Start a run and give its events up to the result; of a detached one the first, once it can be left alone.

        One that is not owned by the command goes on when the command goes away, once what is sent with it has come.
        """
        self._refuse_when_going_down()
        found = await self._devices()
        self._refuse_when_going_down()
        topology = self._supervisor.require_cluster()
        selection = select(found, patterns=patterns, gpus=gpus, strict=strict)
        name = None if sent is None else validate_name(sent)
        job = self._job(topology, selection, program, parameters, name, log_placement)
        try:
            run = self._runs.submit(job, timeout, detach or not owned)
        except OSError as error:
            shutil.rmtree(job.folder, ignore_errors=True)
            raise ClusterError(f"{job.folder}: cannot record the run: {error.strerror}") from error
        async with contextlib.aclosing(self._events(run, incoming, detach, owned)) as events:
            async for each in events:
                yield event(each)
        yield reply({})

    async def _devices(self) -> list[Device]:
        """The devices of every task, those of this host and of others, in the order of the topology.

        Raises:
            ClusterError: Tasks do not serve.
        """
        names = [task.name for task in self._supervisor.require_cluster().tasks]
        silent, (devices, troubles) = await asyncio.gather(
            self._supervisor.checks.all_now(_PROBE_BEFORE_RUN), self._elsewhere.ask_all()
        )
        _refuse_when_down([*(task.trouble() for task in silent), *troubles])
        devices += [device for task in self._supervisor.tasks.values() for device in task.devices]
        return sorted((device for device in devices if device.task in names), key=lambda each: names.index(each.task))

    def _job(
        self,
        topology: ClusterTopology,
        selection: Selection,
        program: str,
        parameters: dict[str, Any],
        sent: str | None,
        log_placement: bool,
    ) -> RunSpec:
        """What the driver of a new run has to do; the run's folder is made."""
        identity = self._new_run(program)
        return RunSpec(
            run=identity,
            cluster=topology.cluster,
            program=program,
            folder=str(self._folder.runs / identity),
            addresses=topology.addresses(),
            head=topology.head().address,
            devices=[device.name for device in selection.devices],
            parameters=parameters,
            notes=list(selection.notes),
            sent=sent,
            log_placement=log_placement,
            peers={host.name: host.address for host in topology.hosts} if topology.network == "closed" else None,
        )

    async def _events(
        self, run: Run, incoming: RequestStream, detach: bool, owned: bool
    ) -> AsyncGenerator[Message, None]:
        """A new run's events, the first of which the command has before the driver starts.

        Nobody waits for the result of a run whose command owned it and has gone without a word (a closed terminal): it
        is cancelled.
        """
        starting: asyncio.Future[None] | None = None
        left_alone = False
        try:
            async with contextlib.aclosing(self._runs.follow(run.identity)) as events:
                async for each in events:
                    yield each
                    # The command knows its run now: it finds it again, should this agent not live to tell more.
                    starting = starting or asyncio.ensure_future(self._start(run, incoming))
                    while detach and run.active and not starting.done():
                        await asyncio.wait({starting}, timeout=_POLL_SECONDS)
                    if detach and run.active and not run.ending:
                        left_alone = True
                        break
        finally:
            if starting is not None:
                starting.cancel()
            if not (left_alone or (not owned and self._needs_nothing_more(run, starting))):
                self._runs.cancel(run.identity)

    def _needs_nothing_more(self, run: Run, starting: asyncio.Future[None] | None) -> bool:
        """Whether a run can go on without its command; one that nothing is sent with is started, if it is not yet."""
        assert run.job is not None, "it has just been submitted"
        if run.job.sent is None:
            self._runs.start(run)
            return True
        return starting is not None and starting.done()

    async def _start(self, run: Run, incoming: RequestStream) -> None:
        """Start a run's driver once the file that is sent with it, if there is one, has come."""
        assert run.job is not None, "it has just been submitted"
        try:
            if (path := run.job.sent_path) is not None:
                await receive(incoming, path)
        except ConnectionError:
            self._runs.cancel(run.identity)
        except ClusterError as problem:
            self._runs.fail(run, problem)
        else:
            self._runs.start(run)
        finally:
            if not run.active:  # it ended while the file came
                shutil.rmtree(run.sent, ignore_errors=True)

    async def runs(self, lines: int | None) -> AsyncIterator[Message]:
        """The runs, the oldest first: the last `lines`, or all."""
        records = self._runs.all_records()
        if lines is not None:
            records = records[len(records) - min(lines, len(records)) :]
        yield reply({"runs": [record.summary() for record in records]})

    async def attach(self, run: str, events: int, output: int, owned: bool) -> AsyncIterator[Message]:
        """A run's events from the first that the command has not had yet, up to the result.

        Args:
            run: The run, or a unique beginning of its id.
            events: How many of its events the command has had, without output.
            output: How many lines of output it has had.
            owned: Whether the run is the command's own, so that the run is cancelled when the command goes away.
        """
        identity = self._runs.records.find(run)
        if owned:
            self._runs.mark_reclaimed(identity)
        try:
            async for each in from_place(self._runs.follow(identity), events, output):
                yield event(each)
        finally:
            if owned:
                self._runs.cancel(identity)
        yield reply({})

    async def cancel(self, run: str) -> AsyncIterator[Message]:
        """Stop a run; one that has ended already is left as it is."""
        identity = self._runs.records.find(run)
        self._runs.cancel(identity)
        yield reply({"run": identity})

    def _new_run(self, program: str) -> str:
        """A new run's id, with its folder made."""
        identity = f"{program}-{secrets.token_hex(2)}"
        while not self._runs.records.make_folder(identity):
            # Four digits are easy to type; an earlier run has them, so more are needed by now.
            identity = f"{program}-{secrets.token_hex(4)}"
        return identity


def _refuse_when_down(troubles: Sequence[str]) -> None:
    if troubles:
        raise ClusterError(
            "; ".join(troubles),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` what one said last.",
            exit_code=ExitCode.UNHEALTHY,
        )
