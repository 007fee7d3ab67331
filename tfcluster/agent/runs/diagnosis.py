"""What keeps tasks from serving, and members of a group from connecting, and what the user can type about it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

from tfcluster import settings
from tfcluster.agent.runs.remote_tasks import RemoteTaskMonitor
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.stacks import StackReader
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.agent.tasks.transitions import TaskRuntime
from tfcluster.agent.timeout import wait_for
from tfcluster.core.forwarding import Forwarder, forwarders_of
from tfcluster.core.groups import Group, Member, MemberObservation
from tfcluster.core.programs import tasks_with_addresses
from tfcluster.core.stacks import Wait, find_wait
from tfcluster.core.states import TaskState
from tfcluster.core.text import summarize_list
from tfcluster.core.tf_config import EVALUATOR_JOB
from tfcluster.core.topology import ClusterTopology, Task, join_address
from tfcluster.os.process_handle import is_frozen
from tfcluster.os.tcp_sockets import connected_ports
from tfcluster.paths import LOCAL_HOST
from tfcluster.processes.groups.member_states import MemberState, read_states
from tfcluster.protocol.codec import Message
from tfcluster.tf_install import tensorflow_version


@dataclass(frozen=True)
class Problem:
    """What keeps a program waiting."""

    problem: str
    hint: str  # what to type or change
    task: str = ""  # the name of the task that is at fault; empty if it is none
    host: str = ""  # the name of the task's host


@dataclass(frozen=True)
class EndedMember(Problem):
    """A member of a group that has exited with 0, and for which the others wait in vain."""


def describe_task(task: TaskRuntime) -> Problem:
    """Describe why a task on this host does not serve."""
    short, state = task.spec.short, task.machine.state
    problem = task.describe_problem()
    hints = {
        TaskState.BACKING_OFF: f"It restarts automatically; `tfcluster logs {short}` shows why it exited.",
        TaskState.FAILED: f"`tfcluster logs {short}` shows why; `tfcluster restart {short}` restarts it.",
        TaskState.STOPPED: f"`tfcluster restart {short}` restarts it.",
        TaskState.STARTING: f"`tfcluster logs {short}` shows what it prints.",
        TaskState.STOPPING: "`tfcluster status` shows when it is ready again.",
    }
    hint = hints.get(
        state, f"`tfcluster stack {short}` shows what it is doing; `tfcluster restart {short}` restarts it."
    )
    if task.process is not None and is_frozen(task.process.pid):
        on_host = "" if task.spec.host == LOCAL_HOST else f" on {task.spec.host}"
        problem = f"{short}{on_host} is frozen: a signal (SIGSTOP) has stopped its process, {task.process.pid}"
        hint = f"`kill -CONT {task.process.pid}`{on_host} resumes it; `tfcluster restart {short}` restarts it."
    return Problem(problem, hint, task.spec.name, task.spec.host)


async def describe_remote_task(task: Task, forwarder: Forwarder | None = None) -> Problem:
    """Describe why a task on another host does not serve, from how its host takes a connection to it.

    `forwarder` is the one of its host; None if tasks are connected to directly.
    """
    host, port, what = task.address_host, task.port, "server"
    if forwarder is not None:  # the one here accepts every connection
        host, port, what = forwarder.address, forwarder.port, "forwarder"
    name = f"{task.short} at {join_address(host, port)} on {task.host}"
    hint = "`tfcluster status` shows its state, `tfcluster doctor` what the hosts can reach."
    try:
        connecting = asyncio.open_connection(host, port)
        _, writer = await wait_for(connecting, settings.WAIT_CONNECT_SECONDS)
    except asyncio.TimeoutError:
        problem = "cannot be reached: connections are not answered (a firewall drops them, or the host is down)"
    except ConnectionRefusedError:
        problem = f"refuses connections: no {what} listens there, or a firewall rejects them"
    except OSError as error:
        problem = f"cannot be reached: {error.strerror or error}"
    else:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        problem = "accepts connections but does not answer: it is frozen or hangs"
        if forwarder is not None:
            problem = "does not answer, though the forwarder there does: its server is not running, frozen or hanging"
        hint = f"`tfcluster stack {task.short}` shows what it is doing; `tfcluster restart {task.short}` restarts it."
    return Problem(f"{name} {problem}", hint, task.name, task.host)


async def explain_wait(
    run: Run, pid: int, wait: Wait | None, supervisor: TaskSupervisor, remote: RemoteTaskMonitor, version: str | None
) -> Sequence[Problem]:
    """Return why a program of a run waits in a call.

    These are the tasks that do not serve, or else what is wrong with the connection to them. Nothing is returned if the
    tasks serve: the program may be waiting for what they compute, or for the other members of its group. Without a wait
    only the tasks are looked at.

    `version` is that of the TensorFlow that the servers on this host have loaded; None if it is not known.
    """
    topology = supervisor.topology
    if topology is None:
        return []
    names = {name for name, _ in tasks_with_addresses(_used_addresses(run, topology))}
    problems = await _find_problems(supervisor, remote, names) if names else []
    if problems or wait is None or not wait.connects or (run.plan is not None and run.plan.group is not None):
        return problems
    return await _explain_connecting(run, pid, wait, topology, version)


def _used_addresses(run: Run, topology: ClusterTopology) -> Mapping[str, Sequence[str]]:
    """Return the addresses of the servers that a run uses; members of a group take the place of others."""
    if not topology.has_servers:
        return {}
    if run.plan is None:
        return topology.addresses()
    return run.plan.addresses if run.plan.group is None else run.plan.group.servers


async def _explain_connecting(
    run: Run, pid: int, wait: Wait, topology: ClusterTopology, version: str | None
) -> Sequence[Problem]:
    """Return why a program cannot connect although all tasks serve."""
    installed = tensorflow_version()
    if version is not None and installed not in (None, version):
        problem = f"the servers on this host run TensorFlow {version}, the program {installed}, which is installed now"
        return [
            Problem(problem, "`tfcluster down`, then `tfcluster up`, restarts the servers with the installed version.")
        ]
    reserved = [task for task in topology.reserved if task.valid_until_generation is None]
    if reserved and "Session" in wait.call:
        return [_describe_reserved(reserved)]
    if not await _is_connected(pid, topology):
        hosts = ",".join(dict.fromkeys(task.address_host for task in topology.tasks))
        problem = "all tasks answer, but the program has no connection to any: a proxy might be set in its environment"
        hint = "Remove http_proxy, https_proxy and grpc_proxy from it, or have the program set "
        return [Problem(problem, f"{hint}no_grpc_proxy={hosts} before it connects.")]
    if wait.call == "connect_to_cluster":
        problem = "all tasks answer, but the chief of TF_CONFIG is missing, which is the script itself"
        return [Problem(problem, 'Make the script the chief: connect_to_cluster(resolver, job_name="chief").')]
    problem = "all tasks answer this host, but they may be unable to reach each other or the program"
    return [
        Problem(problem, f"`tfcluster doctor` checks the connections, `tfcluster stack {run.id}` shows the program.")
    ]


def _describe_reserved(tasks: Sequence[Task]) -> Problem:
    """Describe tasks that servers know and that are not started."""
    names = summarize_list([task.short for task in tasks])
    problem = (
        f"{names} not started: a session waits for every address that its server knows, even those that `max` keeps"
    )
    counts = {task.job: task.index + 1 for task in sorted(tasks, key=lambda task: task.index)}
    scale = " ".join(f"{job}={count}" for job, count in counts.items())
    hint = f"`tfcluster scale {scale}` starts them, or give the session device_filters without them."
    return Problem(problem, hint, tasks[0].name, tasks[0].host)


async def _is_connected(pid: int, topology: ClusterTopology) -> bool:
    """Return whether a process has a connection to a task, as far as can be seen."""
    search = partial(_find_connection, pid, {task.port for task in topology.tasks})
    try:
        result = await run_in_child("tfcluster: connections", search, settings.WAIT_REPEAT_SECONDS)
    except OSError:
        return True
    return result is None or bool(result["is_connected"])


def _find_connection(pid: int, ports: Collection[int | None]) -> Message:
    """Look for a connection of a process to some ports; it may have many, and its host too."""
    try:
        return {"is_connected": not connected_ports(pid).isdisjoint(ports)}
    except OSError:
        return {"is_connected": True}


async def _find_problems(supervisor: TaskSupervisor, remote: RemoteTaskMonitor, used: Collection[str]) -> list[Problem]:
    """Probe the tasks of the cluster and describe those that do not serve.

    `used` has the names of the tasks that may matter; others are left out.
    """
    topology = supervisor.topology
    if topology is None:
        return []
    silent, (_, missing) = await asyncio.gather(supervisor.probe_all(settings.WAIT_PROBE_SECONDS), remote.probe_all())
    problems = [describe_task(task) for task in silent if task.spec.name in used]
    others = [task for task in topology.tasks if task.name in missing and task.name in used]
    forwarders = forwarders_of(topology)
    problems += await asyncio.gather(*(describe_remote_task(task, forwarders.get(task.host)) for task in others))
    known = {task.name for task in topology.tasks}
    removed = sorted(set(used) - known)
    return problems + [_describe_removed(name) for name in removed]


def _describe_removed(name: str) -> Problem:
    job, _, index = name.removeprefix("/job:").partition("/task:")
    hint = f"`tfcluster scale {job}={int(index) + 1}` adds it again; then run the program again."
    return Problem(f"{job}:{index} is no longer part of the cluster", hint, name)


async def explain_group(run: Run, group: Group, wait: Wait | None, host: str, stacks: StackReader) -> list[Problem]:
    """Return which members of a group keep others waiting, and why; without a wait, those that are frozen.

    `run` is the run on the host of the coordinator, and `host` the name of this host.
    """
    states = read_states(run.folder)
    seen = {member.short: _observe(member, states.get(member.short), host) for member in group.members}
    frozen = [member for member in group.members if seen[member.short].is_frozen]
    if frozen:
        return [_describe_frozen(member, states[member.short].pid) for member in frozen]
    if wait is None or not wait.connects:  # in the middle of a training, members do different things
        return _explain_coordinator(run, group, wait, states)
    explanations = [
        await _explain_member(run, member, states.get(member.short), stacks if member.host == host else None)
        for member in group.members
        if member.job != EVALUATOR_JOB  # nobody connects to it
    ]
    if problems := [problem for problem in explanations if problem is not None]:
        return problems
    hint = f"`tfcluster stack {run.id}` shows where all members are, `tfcluster doctor` checks the connections."
    return [
        Problem(
            "all members are running, and each is in a call of TensorFlow; they may be unable to reach each other", hint
        )
    ]


def _observe(member: Member, state: MemberState | None, host: str) -> MemberObservation:
    """Return what is seen of a member, here or by the agent of its host."""
    if state is None or state.exit_code is not None:
        return MemberObservation()
    return MemberObservation(is_frozen=is_frozen(state.pid)) if member.host == host else state.observation


def _describe_frozen(member: Member, pid: int) -> Problem:
    there = "" if member.host == LOCAL_HOST else f" on {member.host}"
    return Problem(member.describe_frozen(pid), f"`kill -CONT {pid}`{there} resumes it.", host=member.host)


def _explain_coordinator(run: Run, group: Group, wait: Wait | None, states: Mapping[str, MemberState]) -> list[Problem]:
    """Return the workers if a ClusterCoordinator waits for one, and all have ended."""
    if wait is None or not wait.call.startswith("ClusterCoordinator"):
        return []
    workers = [(member, states.get(member.short)) for member in group.members if member.job == "worker"]
    ended = [
        _describe_ended(run, member, state.exit_code)
        for member, state in workers
        if state is not None and state.exit_code is not None
    ]
    return ended if len(ended) == len(workers) else []


def _describe_ended(run: Run, member: Member, code: int) -> Problem:
    kind = EndedMember if code == 0 else Problem  # with another code it ends the group
    hint = f"`tfcluster logs {run.id}` shows what it has printed."
    return kind(f"{member.name} has ended (exit code {code})", hint, host=member.host)


async def _explain_member(
    run: Run, member: Member, state: MemberState | None, stacks: StackReader | None
) -> Problem | None:
    """Return why a member does not connect; None if it does.

    `state` is None if the member has not been started. `stacks` is None if it is on another host, whose agent has seen
    whether it waits.
    """
    hint = f"`tfcluster logs {run.id}` shows what it has printed."
    if state is None:
        return Problem(f"{member.name} has not been started yet", hint, host=member.host)
    if state.exit_code is not None:
        return _describe_ended(run, member, state.exit_code)
    place = ""
    if stacks is not None:
        threads = (await stacks.read(state.pid, run.folder)).threads
        if not threads and is_frozen(state.pid):  # since it was observed
            return _describe_frozen(member, state.pid)
        if not threads or find_wait(threads) is not None:
            return None
        frame = threads[0].frames[0] if threads[0].frames else None
        place = "" if frame is None else f"; it is in {PurePath(frame.file).name}:{frame.line}, {frame.function}"
    elif state.observation.wait is not None:
        return None
    hint = f"`tfcluster stack {run.id}` shows where all members are."
    return Problem(f"{member.name} has not begun to connect{place}", hint, host=member.host)
