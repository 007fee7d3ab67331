"""RPC handlers of `run`: submit, attach to, list and cancel runs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator, Collection
from signal import Signals
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.handlers.groups import group_spec, not_recorded, peers_of
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.stream import follow, skip, wait_for_result
from tfcluster.agent.upload import Upload, receive, validate_filename
from tfcluster.core.devices import Device, Selection, not_ready, select
from tfcluster.core.programs import compute_tasks, fails_at_restart, missing_notes, required_tasks
from tfcluster.core.tf_config import refusal_notes
from tfcluster.core.topology import PS_JOB, ClusterTopology, Task
from tfcluster.errors import ClusterError
from tfcluster.processes.runs.run_spec import RunSpec
from tfcluster.processes.runs.stored_output import missing_bytes
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.runs import (
    AttachRequest,
    CancelReply,
    CancelRequest,
    EventRecord,
    FailingRunsReply,
    FailingRunsRequest,
    RunRequest,
    RunsReply,
    RunsRequest,
    RunSummary,
    SignalRequest,
)
from tfcluster.protocol.codec import Message


class RunHandlers:
    """Handles the requests about runs."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._supervisor = context.supervisor
        self._runs = context.runs

    async def run(self, request: RunRequest, upload: Upload) -> Response[EventRecord, Done]:
        """Submit a run and send its events; see `RunRequest`.

        A run that the command does not own continues after the command disconnects, once its upload is complete.
        """
        self._context.reject_if_going_down()
        if request.upload is not None:
            validate_filename(request.upload)
        job = await self._job(request) if request.group is None else group_spec(self._context, request, request.group)
        try:
            run = self._runs.submit(job, request.timeout, request.detach or not request.cancel_on_disconnect)
        except OSError as error:
            raise not_recorded(job, error) from error
        async with contextlib.aclosing(
            self._events(run, upload, request.detach, request.cancel_on_disconnect)
        ) as events:
            async for event in events:
                yield EventRecord(event)
        yield Reply(Done())

    async def _devices(self) -> tuple[list[Device], dict[str, str]]:
        """Probe all tasks, on this host and on others, and list their devices.

        Returns the devices of the tasks that are ready, in the order of the tasks in the topology, and why each of the
        other tasks is not ready, by its name.
        """
        names = {task.name: number for number, task in enumerate(self._supervisor.require_cluster().tasks)}
        silent, (devices, missing) = await asyncio.gather(
            self._supervisor.health.probe_all(settings.RUN_PROBE_SECONDS), self._context.remote_tasks.probe_all()
        )
        missing.update({task.spec.name: task.describe_problem() for task in silent})
        devices += [device for task in self._supervisor.tasks.values() for device in task.devices]
        ready = [device for device in devices if device.task in names and device.task not in missing]
        return sorted(ready, key=lambda device: names[device.task]), missing

    def _head(self, topology: ClusterTopology, missing: Collection[str]) -> Task:
        """Return the head task or, if its host is away, so that this one leads the run, a task that is ready here."""
        head = topology.head()
        if head.name not in missing or head.host == self._supervisor.host:
            return head
        ready = [task for task in topology.on(self._supervisor.host) if task.name not in missing]
        return next((task for task in ready if task.job != PS_JOB), ready[0] if ready else head)

    async def _job(self, request: RunRequest) -> RunSpec:
        """Choose the devices of a new run, create its directory, and return the specification for its driver."""
        devices, missing = await self._devices()
        self._context.reject_if_going_down()
        topology = self._supervisor.require_cluster()
        head = self._head(topology, missing)
        selection = _select(topology, head, devices, missing, request)
        network = self._context.network.find(topology.network)  # before the folder: it may be gone
        run_id = self._runs.store.new_run(request.name or request.program)
        refused = refusal_notes(topology.addresses()) if request.traits.is_script else []
        return RunSpec(
            run=run_id,
            cluster=topology.cluster,
            program=request.program,
            traits=request.traits,
            folder=self._context.state_dir.runs / run_id,
            addresses=topology.addresses(),
            head=head.address,
            devices=[device.name for device in selection.devices],
            parameters=request.parameters,
            notes=[*selection.notes, *missing_notes(missing), *refused],
            missing=missing,
            upload=request.upload,
            log_placement=request.log_placement,
            peers=peers_of(topology),
            origin=request.origin,
            code=request.code,
            caller=request.caller,
            streams=request.streams,
            host=self._supervisor.host,
            start_timeout=request.start_timeout,
            network=network,
            notify=request.notify,
            ports=topology.program_ports_on(self._supervisor.host),
            output_limit=topology.logs.run,
        )

    async def _events(
        self, run: Run, upload: Upload, detach: bool, cancel_on_disconnect: bool
    ) -> AsyncGenerator[Message, None]:
        """Yield the events of a new run, and start its driver after the command has received the first event.

        With `cancel_on_disconnect`, the run is cancelled if the command disconnects without a message (for example
        because the terminal was closed), because nothing waits for its result.
        """
        starting: asyncio.Future[None] | None = None
        # The command has the other hosts join the group before it is detached.
        group = None if run.spec is None else run.spec.group
        has_remote_members = group is not None and group.hosts != (self._supervisor.host,)
        is_detached = False
        try:
            async with contextlib.aclosing(follow(self._runs, run.id, is_owner=not detach)) as events:
                async for each in events:
                    yield each
                    # The command knows the run's id now, so that it can find the run again if this agent dies.
                    starting = starting or asyncio.ensure_future(self._start(run, upload))
                    while detach and run.is_active and not starting.done():
                        changed = asyncio.ensure_future(run.changed.wait_for_change(run.changed.count))
                        await asyncio.wait({starting, changed}, return_when=asyncio.FIRST_COMPLETED)
                        changed.cancel()
                    is_submitted = not has_remote_members or each["event"] == "coordinator"
                    if detach and is_submitted and run.is_active and not run.has_exited:
                        is_detached = True
                        break
        finally:
            has_upload = run.spec is not None and run.spec.upload is not None
            continues = not cancel_on_disconnect and (not has_upload or (starting is not None and upload.is_complete))
            if starting is not None and not continues:
                starting.cancel()
            if continues and not has_upload:
                self._runs.start(run)  # if the command disconnected before
            if not (is_detached or continues):
                self._runs.cancel(run.id)

    async def _start(self, run: Run, upload: Upload) -> None:
        """Start a run's driver, after its upload (if there is one) is complete."""
        assert run.spec is not None, "it has just been submitted"
        try:
            if (path := run.spec.upload_path) is not None:
                await receive(upload, path)
        except ClusterError as problem:
            self._runs.fail(run, problem)
        else:
            self._runs.start(run)
        finally:
            if not run.is_active:  # the run ended during the upload
                shutil.rmtree(run.upload, ignore_errors=True)

    async def runs(self, request: RunsRequest) -> Response[NoReturn, RunsReply]:
        """List the runs, the oldest first."""
        records = self._runs.all_records()
        if request.lines is not None:
            records = records[len(records) - min(request.lines, len(records)) :]
        missing = {record.run: missing_bytes(self._runs.store.folder(record.run)) for record in records}
        yield Reply(
            RunsReply(tuple(RunSummary(**each.summary(), missing_output=missing[each.run]) for each in records))
        )

    async def attach(self, request: AttachRequest) -> Response[EventRecord, Done]:
        """Send the events of a run up to its result; see `AttachRequest`."""
        run_id = self._runs.store.find(request.run)
        if request.only_result:
            async with contextlib.aclosing(wait_for_result(self._runs, run_id)) as results:
                async for event in results:
                    yield EventRecord(event)
            yield Reply(Done())
            return
        if request.cancel_on_disconnect and (active := self._runs.runs.get(run_id)):
            active.mark_reclaimed()
        try:
            followed = follow(self._runs, run_id, output=request.output, is_owner=request.is_owner)
            async with contextlib.aclosing(followed) as events:
                async for event in skip(events, request.events):
                    yield EventRecord(event)
        finally:
            if request.cancel_on_disconnect:
                self._runs.cancel(run_id)
        yield Reply(Done())

    async def cancel(self, request: CancelRequest) -> Response[NoReturn, CancelReply]:
        """Cancel a run, or interrupt a script."""
        run_id = self._runs.store.find(request.run)
        if request.interrupt and (active := self._runs.runs.get(run_id)):
            active.interrupt(self._runs.cancel)
        else:
            self._runs.cancel(run_id)
        yield Reply(CancelReply(run_id))

    async def signal(self, request: SignalRequest) -> Response[NoReturn, Done]:
        """Pass a signal on to a script; see `SignalRequest`."""
        if active := self._runs.runs.get(request.run):
            active.pass_signal(Signals[request.signal.value], request.columns, request.lines)
        yield Reply(Done())

    async def failing_runs(self, request: FailingRunsRequest) -> Response[NoReturn, FailingRunsReply]:
        """Return which of the active runs fail when tasks are restarted."""
        tasks = self._supervisor.require_cluster().tasks
        names = [task.name for task in tasks]
        restarted = {task.name for task in tasks if task.short in request.tasks}
        failing: dict[bool, list[str]] = {True: [], False: []}
        for record in [run.record for run in self._runs.runs.values() if run.is_active]:
            computing = compute_tasks(record.traits, record.devices, names)
            if fails_at_restart(record.traits, computing, record.required_tasks, restarted):
                failing[record.traits.is_script].append(record.run)
        yield Reply(FailingRunsReply(tuple(failing[False]), tuple(failing[True])))


def _select(
    topology: ClusterTopology, head: Task, devices: list[Device], missing: dict[str, str], request: RunRequest
) -> Selection:
    """Select the devices of a run, which does without the tasks that are not ready unless it needs them.

    `missing` says why tasks are not ready, by their names; `devices` are those of all other tasks.
    """
    selection = select(devices, patterns=request.patterns, gpus=request.gpus, strict=request.strict, missing=missing)
    if request.traits.is_script:  # it need not compute on any task
        return selection
    if missing and not selection.devices:
        raise not_ready(missing.values())
    names = [device.name for device in selection.devices]
    required = required_tasks(request.traits, names, topology.addresses(), head.address)
    if problems := [missing[task] for task in required if task in missing]:
        raise not_ready(problems)
    return selection
