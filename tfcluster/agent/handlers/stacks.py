"""RPC handlers of `stack`: what the processes of a run, or the server of a task, do now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.runs.diagnosis import describe_task
from tfcluster.core.hints import complete_commands
from tfcluster.core.topology import matching_tasks
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os import procfs
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.stacks import (
    RunStacksReply,
    RunStacksRequest,
    TaskThreadsReply,
    TaskThreadsRequest,
    Thread,
)


async def run_stacks(context: AgentContext, request: RunStacksRequest) -> Response[NoReturn, RunStacksReply]:
    """Return the Python stacks of a run's processes."""
    runs = context.runs
    run_id = runs.store.find(request.run)
    run = runs.runs.get(run_id)
    if run is None or not run.is_active:
        hint = f"What it printed: `tfcluster logs {run_id}`."
        raise ClusterError(f"{run_id} has ended", hint=hint, exit_code=ExitCode.FAILED)
    processes = await context.stacks.read_all(run.process, run.folder) if run.process else []
    yield Reply(RunStacksReply(run_id, context.host, tuple(processes)))


async def task_threads(context: AgentContext, request: TaskThreadsRequest) -> Response[NoReturn, TaskThreadsReply]:
    """Return the threads of a task's server."""
    supervisor = context.supervisor
    supervisor.require_cluster()
    tasks = {task.spec.short: task for task in supervisor.tasks.values()}
    (short,) = matching_tasks([request.task], list(tasks))
    task = tasks[short]
    silent = await supervisor.probe_all(settings.WAIT_PROBE_SECONDS)
    problem = describe_task(task) if any(each is task for each in silent) else None
    pid = task.process.pid if task.process else None
    yield Reply(
        TaskThreadsReply(
            task=task.spec.name,
            host=task.spec.host,
            state=task.machine.state,
            pid=pid,
            problem=problem.problem if problem else "",
            hint=complete_commands(problem.hint, context.cluster) if problem else "",
            threads=tuple(_read_threads(pid)) if pid else (),
            log=task.log_tail(),
        )
    )


def _read_threads(pid: int) -> Iterator[Thread]:
    """Yield the threads of a process; none if it has exited."""
    for number in procfs.threads(pid):
        with suppress(OSError):  # it has exited
            state = procfs.stat_fields(pid, number)[procfs.STATE]
            yield Thread(number, procfs.thread_name(pid, number), state, procfs.waits_in(pid, number))
