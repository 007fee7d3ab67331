"""RPC handlers of `run`: submit, attach to, list and cancel runs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from tfcluster import settings
from tfcluster.agent.request_stream import RequestStream
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.runs.remote_tasks import RemoteTaskMonitor
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.stream import follow, skip
from tfcluster.agent.runs.uploads import receive, validate_name
from tfcluster.agent.state_dir import StateDir
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.core.devices import Device, Selection, select
from tfcluster.core.programs import ProgramTraits
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.processes.run_spec import RunSpec
from tfcluster.protocol.api import event, reply
from tfcluster.protocol.codec import Message
from tfcluster.protocol.decoder import decode


class RunHandlers:
    """Handles the requests about runs.

    Args:
        folder: The cluster's state directory.
        supervisor: The tasks on this host.
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
        traits: dict[str, Any],
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
        """Submit a run and stream its events.

        A run that the command does not own continues after the command disconnects, once its upload is complete.

        Yields:
            The run's events up to its result; for a detached run, only its first event, as soon as the command may
            disconnect. At the end an empty reply.
        """
        self._refuse_when_going_down()
        found = await self._devices()
        self._refuse_when_going_down()
        topology = self._supervisor.require_cluster()
        selection = select(found, patterns=patterns, gpus=gpus, strict=strict)
        name = None if sent is None else validate_name(sent)
        job = self._job(topology, selection, program, decode(ProgramTraits, traits), parameters, name, log_placement)
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
        """Probe all tasks, on this host and on others, and list their devices.

        Returns:
            The devices, in the order of the tasks in the topology.

        Raises:
            ClusterError: Some tasks do not respond.
        """
        names = [task.name for task in self._supervisor.require_cluster().tasks]
        silent, (devices, troubles) = await asyncio.gather(
            self._supervisor.checks.all_now(settings.RUN_PROBE_SECONDS), self._elsewhere.probe_all()
        )
        _refuse_when_down([*(task.trouble() for task in silent), *troubles])
        devices += [device for task in self._supervisor.tasks.values() for device in task.devices]
        return sorted((device for device in devices if device.task in names), key=lambda each: names.index(each.task))

    def _job(
        self,
        topology: ClusterTopology,
        selection: Selection,
        program: str,
        traits: ProgramTraits,
        parameters: dict[str, Any],
        sent: str | None,
        log_placement: bool,
    ) -> RunSpec:
        """Create the directory of a new run, and return the specification for its driver."""
        identity = self._new_run(program)
        return RunSpec(
            run=identity,
            cluster=topology.cluster,
            program=program,
            traits=traits,
            folder=str(self._folder.runs / identity),
            addresses=topology.addresses(),
            head=topology.head().address,
            devices=[device.name for device in selection.devices],
            parameters=parameters,
            notes=list(selection.notes),
            upload=sent,
            log_placement=log_placement,
            peers={host.name: host.address for host in topology.hosts} if topology.network == "closed" else None,
        )

    async def _events(
        self, run: Run, incoming: RequestStream, detach: bool, owned: bool
    ) -> AsyncGenerator[Message, None]:
        """Yield the events of a new run, and start its driver after the command has received the first event.

        If the command owns the run and disconnects without a message (for example because the terminal was closed), the
        run is cancelled, because nothing waits for its result.
        """
        starting: asyncio.Future[None] | None = None
        left_alone = False
        try:
            async with contextlib.aclosing(follow(self._runs, run.id)) as events:
                async for each in events:
                    yield each
                    # The command knows the run's id now, so that it can find the run again if this agent dies.
                    starting = starting or asyncio.ensure_future(self._start(run, incoming))
                    while detach and run.is_active and not starting.done():
                        changed = asyncio.ensure_future(run.changed.since(run.changed.count))
                        await asyncio.wait({starting, changed}, return_when=asyncio.FIRST_COMPLETED)
                        changed.cancel()
                    if detach and run.is_active and not run.has_exited:
                        left_alone = True
                        break
        finally:
            if starting is not None:
                starting.cancel()
            if not (left_alone or (not owned and self._needs_nothing_more(run, starting))):
                self._runs.cancel(run.id)

    def _needs_nothing_more(self, run: Run, starting: asyncio.Future[None] | None) -> bool:
        """Return whether a run can continue without its command.

        A run without an upload can; it is started if it has not been started yet.
        """
        assert run.spec is not None, "it has just been submitted"
        if run.spec.upload is None:
            self._runs.start(run)
            return True
        return starting is not None and starting.done()

    async def _start(self, run: Run, incoming: RequestStream) -> None:
        """Start a run's driver, after its upload (if there is one) is complete."""
        assert run.spec is not None, "it has just been submitted"
        try:
            if (path := run.spec.upload_path) is not None:
                await receive(incoming, path)
        except ConnectionError:
            self._runs.cancel(run.id)
        except ClusterError as problem:
            self._runs.fail(run, problem)
        else:
            self._runs.start(run)
        finally:
            if not run.is_active:  # the run ended during the upload
                shutil.rmtree(run.upload, ignore_errors=True)

    async def runs(self, lines: int | None) -> AsyncIterator[Message]:
        """Yield a reply with the runs, the oldest first.

        Args:
            lines: How many of the last runs to list; None for all.
        """
        records = self._runs.all_records()
        if lines is not None:
            records = records[len(records) - min(lines, len(records)) :]
        yield reply({"runs": [record.summary() for record in records]})

    async def attach(self, run: str, events: int, output: int, owned: bool) -> AsyncIterator[Message]:
        """Stream the events of a run up to its result, from the first one that the command has not received yet.

        Args:
            run: The run's id, or a unique prefix of it.
            events: How many of the run's events, not counting output, the command has received.
            output: How many lines of output the command has received.
            owned: Whether the command owns the run, so that the run is cancelled when the command disconnects.
        """
        identity = self._runs.store.find(run)
        if owned and (active := self._runs.runs.get(identity)):
            active.mark_reclaimed()
        try:
            async with contextlib.aclosing(follow(self._runs, identity)) as every:
                async for each in skip(every, events, output):
                    yield event(each)
        finally:
            if owned:
                self._runs.cancel(identity)
        yield reply({})

    async def cancel(self, run: str) -> AsyncIterator[Message]:
        """Cancel a run; a run that has ended already is not changed.

        Args:
            run: The run's id, or a unique prefix of it.
        """
        identity = self._runs.store.find(run)
        self._runs.cancel(identity)
        yield reply({"run": identity})

    def _new_run(self, program: str) -> str:
        """Generate the id of a new run and create its directory."""
        identity = f"{program}-{secrets.token_hex(2)}"
        while not self._runs.store.make_folder(identity):
            # Four digits are easy to type, but an earlier run already has them: use more.
            identity = f"{program}-{secrets.token_hex(4)}"
        return identity


def _refuse_when_down(troubles: Sequence[str]) -> None:
    if troubles:
        raise ClusterError(
            "; ".join(troubles),
            hint="`tfcluster status` shows the tasks, `tfcluster logs TASK` what one said last.",
            exit_code=ExitCode.UNHEALTHY,
        )
