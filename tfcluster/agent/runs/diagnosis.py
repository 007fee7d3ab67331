"""What keeps tasks from serving, as far as the agent of one host can tell, and what the user can type about it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass

from tfcluster import settings
from tfcluster.agent.runs.remote_tasks import RemoteTaskMonitor
from tfcluster.agent.tasks.supervisor import Supervisor
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.core.states import TaskState
from tfcluster.core.topology import Task
from tfcluster.paths import LOCAL_HOST
from tfcluster.process_handle import is_frozen


@dataclass(frozen=True)
class Problem:
    """What keeps a program waiting.

    Attributes:
        problem: What is wrong.
        hint: What to type or change.
        task: The name of the task that is at fault; empty if it is none.
        host: The name of the task's host.
    """

    problem: str
    hint: str
    task: str = ""
    host: str = ""


def describe_task(task: TaskRuntime) -> Problem:
    """Describe why a task on this host does not serve.

    Args:
        task: A task that is not ready or has not answered a probe.
    """
    short, state = task.spec.short, task.machine.state
    problem = task.describe_problem()
    hints = {
        TaskState.BACKING_OFF: f"It is started again by itself; `tfcluster logs {short}` shows why it ended.",
        TaskState.FAILED: f"`tfcluster logs {short}` shows why; `tfcluster restart {short}` starts it again.",
        TaskState.STOPPED: f"`tfcluster restart {short}` starts it again.",
        TaskState.STARTING: f"`tfcluster logs {short}` shows what it prints.",
        TaskState.STOPPING: "`tfcluster status` shows when it is back.",
    }
    hint = hints.get(state, f"`tfcluster stack {short}` shows what it does; `tfcluster restart {short}` restarts it.")
    if task.process is not None and is_frozen(task.process.pid):
        on_host = "" if task.spec.host == LOCAL_HOST else f" on {task.spec.host}"
        problem = f"{short}{on_host} is frozen: a signal (SIGSTOP) has stopped its process, {task.process.pid}"
        hint = f"`kill -CONT {task.process.pid}`{on_host} lets it go on; `tfcluster restart {short}` restarts it."
    return Problem(problem, hint, task.spec.name, task.spec.host)


async def describe_remote_task(task: Task) -> Problem:
    """Describe why a task on another host does not serve, from how its host takes a connection to it.

    Args:
        task: A task that has not answered a probe.
    """
    name = f"{task.short} at {task.address} on {task.host}"
    hint = "`tfcluster status` shows its state, `tfcluster doctor` what the hosts can reach."
    try:
        connecting = asyncio.open_connection(task.address_host, task.port)
        _, writer = await asyncio.wait_for(connecting, settings.WAIT_CONNECT_SECONDS)
    except asyncio.TimeoutError:
        problem = "cannot be reached: connections are not answered (a firewall drops them, or the host is down)"
    except ConnectionRefusedError:
        problem = "refuses connections: no server listens there, or a firewall rejects them"
    except OSError as error:
        problem = f"cannot be reached: {error.strerror or error}"
    else:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        problem = "accepts connections but does not answer: it is frozen or hangs"
        hint = f"`tfcluster stack {task.short}` shows what it does; `tfcluster restart {task.short}` restarts it."
    return Problem(f"{name} {problem}", hint, task.name, task.host)


async def find_problems(supervisor: Supervisor, remote: RemoteTaskMonitor, used: Collection[str]) -> list[Problem]:
    """Probe the tasks of the cluster and describe those that do not serve.

    Args:
        supervisor: The tasks on this host.
        remote: The tasks on other hosts.
        used: The names of the tasks that may matter; others are left out.
    """
    topology = supervisor.topology
    if topology is None:
        return []
    silent, (_, missing) = await asyncio.gather(
        supervisor.health.probe_all(settings.WAIT_PROBE_SECONDS), remote.probe_all()
    )
    problems = [describe_task(task) for task in silent if task.spec.name in used]
    others = [task for task in topology.tasks if task.name in missing and task.name in used]
    problems += await asyncio.gather(*map(describe_remote_task, others))
    known = {task.name for task in topology.tasks}
    removed = sorted(set(used) - known)
    return problems + [_describe_removed(name) for name in removed]


def _describe_removed(name: str) -> Problem:
    job, _, index = name.removeprefix("/job:").partition("/task:")
    hint = f"`tfcluster scale {job}={int(index) + 1}` starts it again; then run the program again."
    return Problem(f"{job}:{index} is no longer part of the cluster", hint, name)
