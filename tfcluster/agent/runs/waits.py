"""Detect that a script waits in a call of TensorFlow for tasks, diagnose the cause and report it.

TensorFlow itself says nothing, or repeats one line in the log of a server. A script that computes is not disturbed: the
agent checks what the kernel counts for it, and asks for its Python stack only when it uses no processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath

from tfcluster import settings
from tfcluster.agent.event_loop import BackgroundTasks
from tfcluster.agent.preflight import reach
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.runs.remote_tasks import RemoteTaskMonitor
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.stacks import StackReader, count_switches, find_processes
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.agent.tasks.transitions import TaskRuntime
from tfcluster.core.forwarding import Forwarder, forwarders_of
from tfcluster.core.groups import Group, Member, MemberObservation
from tfcluster.core.hints import complete_commands
from tfcluster.core.programs import tasks_with_addresses
from tfcluster.core.run_events import WaitingEndedEvent, WaitingEvent
from tfcluster.core.stacks import Wait, describe_wait, find_wait
from tfcluster.core.states import TaskState
from tfcluster.core.text import summarize_list
from tfcluster.core.tf_config import EVALUATOR_JOB
from tfcluster.core.topology import ClusterTopology, Task, join_address
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.network import connected_ports
from tfcluster.os.process_handle import is_frozen
from tfcluster.os.procfs import cpu_seconds
from tfcluster.paths import LOCAL_HOST
from tfcluster.processes.connection_check import describe_timeout
from tfcluster.processes.groups.member_states import MemberState, read_states, write_observations
from tfcluster.processes.runs.run_plan import append_event
from tfcluster.protocol.api.cluster import ReachRequest
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


def _is_frozen(task: TaskRuntime) -> bool:
    return task.process is not None and is_frozen(task.process.pid)


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
    if task.process is not None and _is_frozen(task):
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
    address = join_address(host, port)
    name = f"{task.short} at {address} on {task.host}"
    hint = "`tfcluster status` shows its state, `tfcluster doctor` what the hosts can reach."
    try:
        reply = await reach(ReachRequest((address,), settings.WAIT_CONNECT_SECONDS))
        failure = reply.failures.get(address)
    except ClusterError as error:
        failure = error.message
    if failure == describe_timeout(settings.WAIT_CONNECT_SECONDS):
        problem = "cannot be reached: connections are not answered (a firewall drops them, or the host is down)"
    elif failure == os.strerror(errno.ECONNREFUSED):
        problem = f"refuses connections: no {what} listens there, or a firewall rejects them"
    elif failure:
        problem = f"cannot be reached: {failure}"
    else:
        problem = "accepts connections but does not answer: it is frozen or hangs"
        if forwarder is not None:
            problem = "does not answer, though the forwarder there does: its server is not running, frozen or hanging"
        hint = f"`tfcluster stack {task.short}` shows what it is doing; `tfcluster restart {task.short}` restarts it."
    return Problem(f"{name} {problem}", hint, task.name, task.host)


async def explain_wait(
    run: Run, pid: int, wait: Wait | None, supervisor: TaskSupervisor, remote: RemoteTaskMonitor
) -> Sequence[Problem]:
    """Return why a program of a run waits in a call.

    These are the tasks that do not serve, or else what is wrong with the connection to them. Nothing is returned if the
    tasks serve: the program may be waiting for what they compute, or for the other members of its group. Without a wait
    only the tasks are looked at.
    """
    topology = supervisor.topology
    if topology is None:
        return []
    names = {name for name, _ in tasks_with_addresses(_used_addresses(run, topology))}
    problems = await _find_problems(supervisor, remote, names) if names else []
    if problems or wait is None or not wait.connects or (run.plan is not None and run.plan.group is not None):
        return problems
    version = supervisor.tensorflow.version if supervisor.tensorflow else None
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
    """Return whether a process has a connection to a task, as far as can be seen; it may have many."""
    ports = {task.port for task in topology.tasks}

    def search() -> bool:
        return not connected_ports(pid).isdisjoint(ports)

    try:
        return bool(await run_in_child("tfcluster: connections", search, settings.WAIT_REPEAT_SECONDS))
    except ClusterError:
        return True


async def _find_problems(supervisor: TaskSupervisor, remote: RemoteTaskMonitor, used: Collection[str]) -> list[Problem]:
    """Probe the tasks of the cluster and describe those that do not serve.

    `used` has the names of the tasks that may matter; others are left out.
    """
    topology = supervisor.topology
    if topology is None:
        return []
    silent, (_, missing) = await asyncio.gather(supervisor.probe_all(settings.WAIT_PROBE_SECONDS), remote.probe_all())
    mine = sorted((task for task in silent if task.spec.name in used), key=lambda task: task.spec.name)
    # Beside a task that is down, one that has missed a single probe is not accused: the machine may be busy.
    down = [task for task in mine if task.machine.state is not TaskState.READY or _is_frozen(task)]
    problems = [describe_task(task) for task in down or mine]
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
        if member.job != EVALUATOR_JOB  # no other process connects to it
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


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _CpuTime:
    """The CPU time of a process. It is not read with psutil, which a host may lack."""

    at: float  # monotonic seconds
    seconds: float

    @classmethod
    def of(cls, pid: int) -> _CpuTime | None:
        """Return that of a process; None if it has exited, or no file descriptor is left."""
        try:
            return cls(time.monotonic(), cpu_seconds(pid))
        except OSError:
            return None

    def is_idle_since(self, earlier: _CpuTime) -> bool:
        """Return whether the process has used hardly any since then."""
        return 100.0 * (self.seconds - earlier.seconds) <= settings.WAIT_CPU_MAX_PERCENT * (self.at - earlier.at)


@dataclass
class _Program:
    """What has been seen of one process of a run."""

    used: _CpuTime | None = None  # at the previous check; None before the first
    read_at: float = 0.0  # when its stack was read last, in monotonic seconds
    switches: int | None = None  # how often its main thread had waited by then; None if its stack must be read again
    has_threads: bool = False  # whether it had other Python threads then
    wait: Wait | None = None  # the call in which it waits; None if it does not
    since: float = 0.0  # when it was first seen to wait in this call, in monotonic seconds
    diagnosed_at: float = 0.0  # when the wait was diagnosed last
    shown: tuple[str, ...] = ()  # the problems of this wait that were shown last, as text
    hints: tuple[str, ...] = ()  # what the user can type about them
    is_first: bool = False  # whether it was shown of this process, and not of another one of the run before


class WaitMonitor:
    """Monitors the scripts that run for calls in which they wait for tasks."""

    def __init__(
        self, cluster: str, supervisor: TaskSupervisor, remote: RemoteTaskMonitor, runs: RunManager, stacks: StackReader
    ) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._remote = remote
        self._runs = runs
        self._stacks = stacks
        self._used_by_tasks: dict[int, _CpuTime] = {}  # at the previous check, by pid
        self._programs: dict[str, dict[int, _Program]] = {}  # by run and pid
        self._remote_programs: dict[str, dict[str, _Program]] = {}  # members of groups on other hosts, by run and task
        self._checks = BackgroundTasks()
        self._last_failure = ""

    async def pause(self) -> None:
        """Wait until the next checks are due; while no script runs, until a run changes."""
        count = self._runs.changed.count
        if not self._scripts():
            await self._runs.changed.wait_for_change(count)
        await asyncio.sleep(settings.WAIT_CHECK_SECONDS)

    def schedule_checks(self) -> None:
        """Start a check of each script that runs, in the background."""
        scripts = self._scripts()
        self._programs = {run.id: self._programs.get(run.id, {}) for run in scripts}
        self._remote_programs = {run.id: self._remote_programs.get(run.id, {}) for run in scripts}
        tasks_are_idle = bool(scripts) and self._are_tasks_idle()
        for run in scripts:
            self._checks.start(self._check, run, tasks_are_idle, key=run.id)

    def _are_tasks_idle(self) -> bool:
        """Return whether no task on this host has used more than a little processor time since the last call."""
        pids = [task.process.pid for task in self._supervisor.tasks.values() if task.process is not None]
        before, used = self._used_by_tasks, {pid: now for pid in pids if (now := _CpuTime.of(pid)) is not None}
        self._used_by_tasks = used
        return all(now.is_idle_since(before[pid]) for pid, now in used.items() if pid in before)

    async def _diagnose(self, run: Run, pid: int, wait: Wait | None) -> Sequence[Problem]:
        """Return why a program waits in a call.

        `pid` is 0 if the program is on another host. `wait` is None if the run is not known to wait in a call.
        """
        problems = await explain_wait(run, pid, wait, self._supervisor, self._remote)
        group = run.plan.group if run.plan is not None else None
        if not problems and group is not None:
            problems = await explain_group(run, group, wait, self._supervisor.host, self._stacks)
        return [replace(each, hint=complete_commands(each.hint, self._cluster)) for each in problems]

    def _scripts(self) -> list[Run]:
        """Return the runs to check: trials use no tasks, and members of an earlier agent's group are not known."""
        scripts = [run for run in self._runs.runs.values() if run.is_active and run.record.options.is_script]
        others = [run for run in scripts if run.record.options.sweep is None]
        return [run for run in others if run.record.options.jobs is None or run.plan is not None]

    async def _check(self, run: Run, tasks_are_idle: bool) -> None:
        try:
            if run.process is None or run.has_exited or run.record.stopping is not None:
                return
            programs = self._programs[run.id]
            pids = [pid for pid in programs if _CpuTime.of(pid) is not None]
            group, host = (None, "") if run.plan is None else (run.plan.group, run.plan.host)
            # The members of a group do not all start at the same moment.
            if len(pids) < (1 if group is None else len(group.on(host))):
                pids = await find_processes(run.process, run.folder, forked=False)
            self._programs[run.id] = programs = {pid: programs.get(pid, _Program()) for pid in pids}
            for pid, program in programs.items():
                await self._check_program(run, pid, program, tasks_are_idle)
            if run.record.is_part:
                seen = {pid: MemberObservation(program.wait, is_frozen(pid)) for pid, program in programs.items()}
                write_observations(run.folder, seen)
            elif group is not None:
                await self._check_remote_members(run)
        except Exception:
            failure = traceback.format_exc()
            if failure != self._last_failure:  # one that repeats is logged once
                _logger.error("%s cannot be checked for waits: %s", run.id, failure.rstrip())
            self._last_failure = failure

    async def _check_program(self, run: Run, pid: int, program: _Program, tasks_are_idle: bool) -> None:
        previous, program.used = program.used, _CpuTime.of(pid)
        if program.used is None or previous is None:
            return
        is_idle = program.used.is_idle_since(previous)
        if not is_idle and not run.down and not program.shown:
            program.wait = program.switches = None
            return
        if self._is_due(run, pid, program):
            await self._read_wait(run, pid, program, since=previous.at)
        wait = program.wait
        if wait is not None and (wait.connects or (is_idle and tasks_are_idle)) and not run.record.is_part:
            await self._explain_or_end(run, pid, program, wait)

    async def _check_remote_members(self, run: Run) -> None:
        """Check the members of a group that wait on other hosts, as the agents there have observed it."""
        programs = self._remote_programs.get(run.id)
        if programs is None:  # the run has ended during the check
            return
        for task, state in read_states(run.folder).items():
            program = programs.setdefault(task, _Program())
            wait = state.observation.wait if state.exit_code is None else None
            if wait != program.wait:
                self._set_wait(run, program, wait, since=time.monotonic())
            if wait is not None:
                await self._explain_or_end(run, 0, program, wait)

    async def _explain_or_end(self, run: Run, pid: int, program: _Program, wait: Wait) -> None:
        """Say why a program waits, when it has done so for long enough; end its run when that takes too long."""
        limit = run.record.options.start_timeout if wait.connects else None
        waited = time.monotonic() - program.since
        is_over = limit is not None and waited >= limit
        if is_over or waited >= settings.WAIT_CHECK_SECONDS:
            await self._explain(run, pid, program, wait, at_once=is_over)
        if limit is not None and is_over:
            self._end(run, program, wait, limit)

    def _is_due(self, run: Run, pid: int, program: _Program) -> bool:
        """Return whether the stack of a program has to be read: it is not known, or may have changed."""
        is_about_to_be_shown = program.wait is not None and not program.shown and not run.record.is_part
        if program.switches is None or is_about_to_be_shown:
            return True
        has_moved = count_switches(pid) != program.switches
        is_late = time.monotonic() - program.read_at >= settings.WAIT_READ_SECONDS
        return has_moved or (program.has_threads and is_late)

    async def _read_wait(self, run: Run, pid: int, program: _Program, since: float) -> None:
        """Read in which call of TensorFlow a program waits, and say so when one that was shown is over."""
        before = count_switches(pid)
        stacks = await self._stacks.read(pid, run.folder, main_only=True)
        after = count_switches(pid)
        if (wait := find_wait(stacks.threads)) is None and stacks.threads:
            stacks = await self._stacks.read(pid, run.folder)
            wait = find_wait(stacks.threads)
        # It has waited once more after writing its stack. With another time, it may have gone on and wait elsewhere.
        program.switches = after if after - before <= 1 else None
        program.read_at = time.monotonic()
        program.has_threads = len(stacks.threads) > 1
        if wait != program.wait and not stacks.problem:
            self._set_wait(run, program, wait, since)

    def _set_wait(self, run: Run, program: _Program, wait: Wait | None, since: float) -> None:
        """Note that a program waits in another call now, or in none."""
        if program.wait is not None and program.is_first:
            seconds = round(time.monotonic() - program.since, 1)
            place = program.wait
            _write(run, WaitingEndedEvent(place.call, place.file, place.line, place.function, seconds))
            # A task that did not answer when the run started may be ready, and have been all the time: that it answers
            # now changes no state, and the run would take its next loss for the one that it knows.
            self._supervisor.changed.notify()
        program.wait, program.since, program.diagnosed_at = wait, since, 0.0
        program.shown, program.is_first = (), False

    async def _explain(self, run: Run, pid: int, program: _Program, wait: Wait, *, at_once: bool) -> None:
        """Emit an event that says why a program waits, unless the same has been said.

        `at_once` says whether the run ends now.
        """
        now = time.monotonic()
        if now - program.diagnosed_at < settings.WAIT_REPEAT_SECONDS and not (at_once and not program.shown):
            return
        problems = await self._diagnose(run, pid, wait)
        is_early = now - program.since < settings.WAIT_UNEXPLAINED_SECONDS and not at_once
        if is_early and any(not each.task for each in problems):
            return  # all tasks answer: it takes a while to connect to many
        program.diagnosed_at = now
        texts = tuple(each.problem for each in problems)
        if not problems or program.wait != wait:
            return
        if texts == program.shown:
            if all(isinstance(each, EndedMember) for each in problems):
                self._fail_group(run, program, wait)
            return
        program.shown, program.hints = texts, tuple(dict.fromkeys(each.hint for each in problems))
        message = _describe(wait, texts)
        programs = [*self._programs.get(run.id, {}).values(), *self._remote_programs.get(run.id, {}).values()]
        others = [each for each in programs if each is not program and each.wait is not None]
        program.is_first = not any(each.wait and _describe(each.wait, each.shown) == message for each in others)
        run.losses.update({each.task: each.problem for each in problems if each.task})
        if not program.is_first:
            return
        seconds, shown = round(time.monotonic() - program.since, 1), [asdict(each) for each in problems]
        _write(run, WaitingEvent(wait.call, wait.file, wait.line, wait.function, seconds, message, shown))

    def _fail_group(self, run: Run, program: _Program, wait: Wait) -> None:
        """End the run of a group that waits for members that have ended, as two diagnoses in a row have shown."""
        assert run.plan is not None, "its group is known"
        assert run.plan.group is not None, "a member of it waits"
        place = _describe(wait, ())  # the script has another path on each host
        local, remote = self._programs.get(run.id, {}), self._remote_programs.get(run.id, {})
        pids = {pid for pid, each in local.items() if each.wait and _describe(each.wait, ()) == place}
        waiting = {task for task, each in remote.items() if each.wait and _describe(each.wait, ()) == place}
        waiting |= {task for task, state in read_states(run.folder).items() if state.pid in pids}
        names = summarize_list([member.name for member in run.plan.group.members if member.short in waiting])
        message = f"{'; '.join(program.shown)}, and {names} cannot continue: {place}"
        self._runs.fail(run, ClusterError(message, hint=" ".join(program.hints)))

    async def explain(self, run: Run) -> tuple[str, str]:
        """Return what a run that has not ended in time waits for, in one line, and hints; empty if it is not known."""
        programs = {each.wait: 0 for each in self._remote_programs.get(run.id, {}).values()}
        programs |= {each.wait: pid for pid, each in self._programs.get(run.id, {}).items()}
        programs.pop(None, None)
        for wait, pid in {**programs, None: 0}.items():
            if problems := await self._diagnose(run, pid, wait):
                texts = [each.problem for each in problems]
                text = "; ".join(texts) if wait is None else _describe(wait, texts)
                return text, " ".join(dict.fromkeys(each.hint for each in problems))
        return "", ""

    def _end(self, run: Run, program: _Program, wait: Wait, limit: float) -> None:
        """End a run that has not started in time."""
        texts = program.shown or ("its tasks answer",)
        message = f"{run.id} has not started within {limit:g} s: {_describe(wait, texts)}"
        self._runs.fail(run, ClusterError(message, hint=" ".join(program.hints), exit_code=ExitCode.TIMED_OUT))


def _describe(wait: Wait, problems: Sequence[str]) -> str:
    return describe_wait(wait.call, wait.file, wait.line, problems)


def _write(run: Run, event: WaitingEvent | WaitingEndedEvent) -> None:
    if run.has_exited:  # meanwhile
        return
    with contextlib.suppress(OSError):  # such as a full disk
        append_event(run.events, event)
