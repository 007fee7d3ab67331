"""Which members of a group keep the others waiting, from the states of all members and the stacks of those here."""

from __future__ import annotations

from pathlib import PurePath

from tfcluster.agent.runs.diagnosis import Problem
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.stacks import StackReader
from tfcluster.core.groups import Group, Member, MemberObservation
from tfcluster.core.stacks import Wait, find_wait
from tfcluster.os.process_handle import is_frozen
from tfcluster.paths import LOCAL_HOST
from tfcluster.processes.groups.member_states import MemberState, read_states


async def explain_group(run: Run, group: Group, wait: Wait, host: str, stacks: StackReader) -> list[Problem]:
    """Return which members of a group keep others waiting, and why.

    `run` is the run on the host of the coordinator, and `host` the name of this host.
    """
    states = read_states(run.folder)
    seen = {member.short: _observe(member, states.get(member.short), host) for member in group.members}
    frozen = [member for member in group.members if seen[member.short].is_frozen]
    if frozen or not wait.connects:  # in the middle of a training, members do different things
        return [_describe_frozen(member, states[member.short].pid) for member in frozen]
    explanations = [
        await _explain_member(run, member, states.get(member.short), stacks if member.host == host else None)
        for member in group.members
    ]
    if problems := [problem for problem in explanations if problem is not None]:
        return problems
    hint = f"`tfcluster stack {run.id}` shows where all members are, `tfcluster doctor` checks the connections."
    return [Problem("all members run, and each is in a call of TensorFlow; they may not reach each other", hint)]


def _observe(member: Member, state: MemberState | None, host: str) -> MemberObservation:
    """Return what is seen of a member, here or by the agent of its host."""
    if state is None or state.exit_code is not None:
        return MemberObservation()
    return MemberObservation(is_frozen=is_frozen(state.pid)) if member.host == host else state.observation


def _describe_frozen(member: Member, pid: int) -> Problem:
    there = "" if member.host == LOCAL_HOST else f" on {member.host}"
    problem = f"{_name(member)} is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
    return Problem(problem, f"`kill -CONT {pid}`{there} resumes it.", host=member.host)


async def _explain_member(
    run: Run, member: Member, state: MemberState | None, stacks: StackReader | None
) -> Problem | None:
    """Return why a member does not connect; None if it does.

    `state` is None if the member has not been started. `stacks` is None if it is on another host, whose agent has seen
    whether it waits.
    """
    hint = f"`tfcluster logs {run.id}` shows what it has printed."
    if state is None:
        return Problem(f"{_name(member)} has not been started yet", hint, host=member.host)
    if state.exit_code is not None:
        return Problem(f"{_name(member)} has ended (exit code {state.exit_code})", hint, host=member.host)
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
    return Problem(f"{_name(member)} has not begun to connect{place}", hint, host=member.host)


def _name(member: Member) -> str:
    return member.short if member.host == LOCAL_HOST else f"{member.short} on {member.host}"
