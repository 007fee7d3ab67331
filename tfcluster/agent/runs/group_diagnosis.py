"""Why a member of a group waits for the others, from what the group's coordinator has told of them and their stacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tfcluster import settings
from tfcluster.agent.log_file import tail
from tfcluster.agent.runs.diagnosis import Problem
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.stacks import StackReader
from tfcluster.core.groups import Group, Member
from tfcluster.core.stacks import find_wait
from tfcluster.paths import LOCAL_HOST
from tfcluster.process_handle import is_frozen


async def explain_group(run: Run, group: Group, host: str, stacks: StackReader) -> list[Problem]:
    """Return which members of a group do not connect to the others, and why.

    Args:
        run: The run of the group, on the host of the coordinator.
        group: The group.
        host: The name of this host.
        stacks: Reads the stacks of the members on this host.
    """
    states = _read_states(run, len(group.members))
    found = [await _explain_member(run, member, host, states.get(member.short, {}), stacks) for member in group.members]
    if problems := [problem for problem in found if problem is not None]:
        return problems
    hint = f"`tfcluster stack {run.id}` shows where all members are, `tfcluster doctor` checks the connections."
    elsewhere = {member.host: "" for member in group.members if member.host != host}
    if elsewhere:
        return [Problem(f"the members on {host} are connecting; those on {', '.join(elsewhere)} may not be", hint)]
    return [Problem("all members run, and each is in a call of TensorFlow; they may not reach each other", hint)]


def _read_states(run: Run, members: int) -> Mapping[str, Any]:
    """Return the last event of each member, by the short name of its task."""
    states = {}
    for line in tail(run.events, settings.WAIT_MEMBER_EVENTS * members)[0]:
        try:
            event = json.loads(line)
        except ValueError:  # a full disk has truncated it
            continue
        if event.get("event") == "member":
            states[event["task"]] = event
    return states


async def _explain_member(
    run: Run, member: Member, host: str, state: Mapping[str, Any], stacks: StackReader
) -> Problem | None:
    """Return why a member does not connect; None if it does, or if that is not known on this host."""
    name = member.short if member.host == LOCAL_HOST else f"{member.short} on {member.host}"
    hint = f"`tfcluster logs {run.id}` shows what it has printed."
    if not state:
        return Problem(f"{name} has not been started yet", hint, host=member.host)
    if state["state"] == "exited":
        return Problem(f"{name} has ended (exit code {state['exit_code']})", hint, host=member.host)
    pid = state["pid"]
    if member.host != host:
        return None
    if is_frozen(pid):
        problem = f"{name} is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
        return Problem(problem, f"`kill -CONT {pid}` lets it go on.", host=member.host)
    threads = (await stacks.read(pid, run.folder)).threads
    wait = find_wait(threads)
    if not threads or wait is not None:
        return None
    frame = threads[0].frames[0] if threads[0].frames else None
    place = "" if frame is None else f"; it is in {PurePath(frame.file).name}:{frame.line}, {frame.function}"
    hint = f"`tfcluster stack {run.id}` shows where all members are."
    return Problem(f"{name} has not begun to connect{place}", hint, host=member.host)
