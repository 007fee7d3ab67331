"""Detect that a script waits in a call of TensorFlow for tasks, diagnose the cause and report it.

TensorFlow itself says nothing, or repeats one line in the log of a server. A script that computes is not disturbed: the
agent checks what the kernel counts for it, and asks for its Python stack only when it uses no processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass

from tfcluster import settings
from tfcluster.agent.runs.diagnosis import EndedMember, Problem
from tfcluster.agent.runs.manager import RunManager
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.stacks import StackReader, count_switches, find_processes
from tfcluster.agent.tasks.resource_usage import ResourceUsage, read_usage
from tfcluster.agent.tasks.supervisor import TaskSupervisor
from tfcluster.core.groups import MemberObservation
from tfcluster.core.run_events import WaitingEndedEvent, WaitingEvent
from tfcluster.core.stacks import Wait, describe_wait, find_wait
from tfcluster.core.text import summarize_list
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import is_frozen
from tfcluster.processes.groups.member_states import read_states, write_observations
from tfcluster.processes.runs.run_plan import append_event

_logger = logging.getLogger(__name__)

#: Returns why a program waits in a call; the arguments are its run, its pid (0 if it is on another host) and the call,
#: or None if the run is not known to wait in one.
Diagnose = Callable[[Run, int, Wait | None], Awaitable[Sequence[Problem]]]


@dataclass
class _Program:
    """What has been seen of one process of a run."""

    usage: ResourceUsage | None = None  # at the previous check; None before the first
    read_at: float = 0.0  # when its stack was read last, in monotonic seconds
    switches: int | None = None  # how often its main thread had waited by then; None if its stack must be read again
    has_threads: bool = False  # whether it had other Python threads then
    wait: Wait | None = None  # the call in which it waits; None if it does not
    since: float = 0.0  # when it was first seen to wait in this call, in monotonic seconds
    diagnosed_at: float = 0.0  # when the wait was diagnosed last
    shown: tuple[str, ...] = ()  # the problems of this wait that were shown last, as text
    hints: tuple[str, ...] = ()  # what the user can type about them
    is_first: bool = False  # whether it was shown of this process, and not of another one of the run before


class IdleMeter:
    """Measures whether the tasks on this host compute."""

    def __init__(self, supervisor: TaskSupervisor) -> None:
        self._supervisor = supervisor
        self._usage: dict[int, ResourceUsage] = {}

    def are_tasks_idle(self) -> bool:
        """Return whether no task has used more than a little processor time since the last call."""
        pids = [task.process.pid for task in self._supervisor.tasks.values() if task.process is not None]
        usage = {pid: now for pid in pids if (now := read_usage(pid)) is not None}
        percents = [now.percent_since(self._usage[pid]) for pid, now in usage.items() if pid in self._usage]
        self._usage = usage
        return all(percent <= settings.WAIT_CPU_MAX_PERCENT for percent in percents)


class WaitMonitor:
    """Monitors the scripts that run for calls in which they wait for tasks.

    Args:
        diagnose: Returns why a program waits.
        are_tasks_idle: Returns whether no task on this host has computed since it was last called.
    """

    def __init__(
        self, runs: RunManager, stacks: StackReader, diagnose: Diagnose, are_tasks_idle: Callable[[], bool]
    ) -> None:
        self._runs = runs
        self._stacks = stacks
        self._diagnose = diagnose
        self._are_tasks_idle = are_tasks_idle
        self._programs: dict[str, dict[int, _Program]] = {}  # by run and pid
        self._remote_programs: dict[str, dict[str, _Program]] = {}  # members of groups on other hosts, by run and task
        self._checking: dict[str, asyncio.Task[None]] = {}
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
            if run.id not in self._checking:
                self._checking[run.id] = asyncio.ensure_future(self._check(run, tasks_are_idle))

    def _scripts(self) -> list[Run]:
        """Return the runs to check; nothing is known of the members of a group that an earlier agent started."""
        scripts = [run for run in self._runs.runs.values() if run.is_active and run.record.options.traits.is_script]
        return [run for run in scripts if run.record.options.traits.uses_servers or run.plan is not None]

    async def _check(self, run: Run, tasks_are_idle: bool) -> None:
        try:
            if run.process is None or run.has_exited or run.record.stopping is not None:
                return
            programs = self._programs[run.id]
            pids = [pid for pid in programs if read_usage(pid) is not None]
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
        finally:
            del self._checking[run.id]

    async def _check_program(self, run: Run, pid: int, program: _Program, tasks_are_idle: bool) -> None:
        previous, program.usage = program.usage, read_usage(pid)
        if program.usage is None or previous is None:
            return
        is_idle = program.usage.percent_since(previous) <= settings.WAIT_CPU_MAX_PERCENT
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
