"""RPC handlers of `run` and `launch`: submit, attach to, list and cancel runs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator
from signal import Signals
from typing import NoReturn

from tfcluster.agent.context import AgentContext
from tfcluster.agent.handlers.run_plan import plan_part, plan_run
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.stream import follow, skip, wait_for_result
from tfcluster.agent.turns import Turn
from tfcluster.agent.upload import Upload, receive, validate_filename
from tfcluster.core.programs import compute_tasks, fails_at_restart
from tfcluster.errors import ClusterError
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.processes.runs.stored_output import missing_bytes
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.runs import (
    AttachRequest,
    CancelReply,
    CancelRequest,
    EventRecord,
    FailingRunsReply,
    FailingRunsRequest,
    JoinRequest,
    RunRequest,
    RunsReply,
    RunsRequest,
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
        if request.options.upload is not None:
            validate_filename(request.options.upload_name)
        plan = await plan_run(self._context, request)
        run = self._submit(plan, detached=request.detach or not request.cancel_on_disconnect)
        async with contextlib.aclosing(
            self._events(run, upload, request.detach, request.cancel_on_disconnect)
        ) as events:
            async for event in events:
                yield EventRecord(event)
        yield Reply(Done())

    async def join(self, request: JoinRequest) -> Response[NoReturn, Done]:
        """Start the process that starts a group's members on this host, and reply when the coordinator has accepted it.

        From then on the coordinator notices if this host is lost, and before that the command does.
        """
        self._context.reject_if_going_down()
        run = self._submit(plan_part(self._context, request), detached=True)
        self._runs.start(run)
        async with contextlib.aclosing(follow(self._runs, run.id, output=None)) as events:
            async for event in events:
                if error := event.get("error"):  # of the result
                    raise ClusterError.from_json(error)
                if event["event"] == "coordinator":
                    break
        yield Reply(Done())

    def _submit(self, plan: RunPlan, *, detached: bool) -> Run:
        try:
            return self._runs.submit(plan, detached)
        except OSError as error:
            shutil.rmtree(plan.folder, ignore_errors=True)
            raise ClusterError(f"{plan.folder}: cannot record the run: {error.strerror}") from error

    async def _events(
        self, run: Run, upload: Upload, detach: bool, cancel_on_disconnect: bool
    ) -> AsyncGenerator[Message, None]:
        """Yield the events of a new run, and start its driver after the command has received the first event.

        With `cancel_on_disconnect`, the run is cancelled if the command disconnects without a message (for example
        because the terminal was closed), because nothing waits for its result.
        """
        starting: asyncio.Future[None] | None = None
        # The command has the other hosts join the group before it is detached.
        group = None if run.plan is None else run.plan.group
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
            has_upload = run.record.options.upload is not None
            continues = not cancel_on_disconnect and (not has_upload or (starting is not None and upload.is_complete))
            if starting is not None and not continues:
                starting.cancel()
            if continues and not has_upload:
                self._runs.start(run)  # if the command disconnected before
            if not (is_detached or continues):
                self._runs.cancel(run.id)

    async def _start(self, run: Run, upload: Upload) -> None:
        """Start a run's driver, after its upload (if there is one) is complete."""
        assert run.plan is not None, "it has just been submitted"
        try:
            if (path := run.plan.upload_path) is not None:
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
        records = await self._runs.all_records()
        if request.lines is not None:
            records = records[len(records) - min(request.lines, len(records)) :]
        summaries, turn = [], Turn()
        for record in records:
            summaries.append(record.summarize(missing_bytes(self._runs.store.folder(record.run))))
            await turn.pause()
        yield Reply(RunsReply(tuple(summaries)))

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
            traits = record.options.traits
            computing = compute_tasks(traits, record.devices, names)
            if fails_at_restart(traits, computing, record.required_tasks, restarted):
                failing[traits.is_script].append(record.run)
        yield Reply(FailingRunsReply(tuple(failing[False]), tuple(failing[True])))
