"""Groups of processes, one per task of some jobs: members, their arguments, and when the group ends."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from enum import Enum

from tfcluster import settings
from tfcluster.core.stacks import Wait
from tfcluster.core.tf_config import CHIEF_JOB, EVALUATOR_JOB
from tfcluster.core.topology import LEADING_JOBS, PS_JOB, ClusterTopology, Task, join_address
from tfcluster.errors import ExitCode, usage_error
from tfcluster.paths import LOCAL_HOST
from tfcluster.records import record_class

# The exit codes of a program that was preempted, has saved its state, and is to be started again at once:
# tf.distribute.experimental.PreemptionCheckpointHandler exits with 42 on most platforms, and with 143 on some.
_PREEMPTED = (42, ExitCode.TERMINATED)
#: In the error of a group, what comes before the last lines of the member that has failed; each of them is indented.
LAST_LINES = "\nits last lines:"
#: What DTensor and Keras read to find the members that train together.
DISTRIBUTION_VARIABLES = (
    "DTENSOR_JOB_NAME",
    "DTENSOR_JOBS",
    "DTENSOR_CLIENT_ID",
    "DTENSOR_NUM_CLIENTS",
    "KERAS_DISTRIBUTION_JOB_ADDRESSES",
    "KERAS_DISTRIBUTION_PROCESS_ID",
    "KERAS_DISTRIBUTION_NUM_PROCESSES",
)
_PLACEHOLDER = re.compile(r"\{(job|index|rank|world_size|address|([A-Za-z0-9_.-]+)_hosts)\}")


@record_class(frozen=True)
class Member:
    """One process of a group."""

    job: str
    index: int
    rank: int  # its number in the group, from 0
    host: str
    address_host: str  # the host part of the address at which the other members reach it
    gpu_ids: tuple[str, ...] = ()  # as CUDA_VISIBLE_DEVICES names them
    env: dict[str, str] = field(default_factory=dict, repr=False)  # of its task

    @property
    def short(self) -> str:
        """Return the short name of its task, such as `worker:1`."""
        return f"{self.job}:{self.index}"

    @property
    def name(self) -> str:
        """Return the short name of its task, with its host unless the cluster has only this machine."""
        return self.short if self.host == LOCAL_HOST else f"{self.short} on {self.host}"

    @property
    def trains(self) -> bool:
        """Return whether it is of a job that trains; the other jobs serve it, or evaluate its checkpoints."""
        return self.job not in (PS_JOB, EVALUATOR_JOB)

    def describe_frozen(self, pid: int) -> str:
        """Describe what is wrong with it if its process is stopped."""
        return f"{self.name} is frozen: a signal (SIGSTOP) has stopped its process, {pid}"

    def address(self, port: int) -> str:
        """Return its address with a port."""
        return join_address(self.address_host, port)


@record_class(frozen=True)
class MemberObservation:
    """The state of a member as the agent of its host sees it."""

    wait: Wait | None = None  # None if it does not wait, or is not known to
    is_frozen: bool = False  # whether a signal has stopped its process


@record_class(frozen=True)
class Group:
    """A group of processes."""

    members: tuple[Member, ...]  # in the order of their ranks
    servers: dict[str, list[str]]  # the addresses of the cluster's servers by job, for the jobs that have no members
    secret: str = field(repr=False)  # what a host has to know to take part, in hexadecimal digits
    address_host: str  # the host part of the address at which the other hosts reach the coordinator
    coordinator: str | None = None  # the address, for a host that is to connect to it; None for the coordinator

    def on(self, host: str) -> tuple[Member, ...]:
        """Return the members that run on a host."""
        return tuple(member for member in self.members if member.host == host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts that have members, the first member's first."""
        return tuple(dict.fromkeys(member.host for member in self.members))

    def addresses(self, ports: Mapping[int, int]) -> dict[str, list[str]]:
        """Return the addresses of the members by job, given the port of each rank."""
        jobs: dict[str, list[str]] = {}
        for member in sorted(self.members, key=lambda each: each.index):
            jobs.setdefault(member.job, []).append(member.address(ports[member.rank]))
        return jobs


def select_members(topology: ClusterTopology, jobs: Sequence[str], option: str = "--each") -> tuple[Member, ...]:
    """Return a member for each task of some jobs (default: `worker`, and `chief` if any), or raise a ClusterError.

    `option` is that with which the user chooses the jobs.
    """
    existing = list(dict.fromkeys(task.job for task in topology.tasks))
    hint = f"Choose with {option} from: {', '.join(existing)}."
    if missing := [job for job in jobs if job not in existing]:
        raise usage_error(f"the cluster has no job {missing[0]!r}", hint)
    chosen = jobs or [job for job in existing if job in (CHIEF_JOB, "worker")]
    if not chosen:
        raise usage_error("the cluster has no job `worker`", hint)
    order = sorted(dict.fromkeys(chosen), key=lambda job: (job not in LEADING_JOBS, job != "worker"))
    tasks = [task for job in order for task in topology.tasks if task.job == job]
    return tuple(
        Member(task.job, task.index, rank, task.host, task.address_host, task.gpu_ids, _variables_of(task))
        for rank, task in enumerate(tasks)
    )


def _variables_of(task: Task) -> dict[str, str]:
    """Return the variables of a task's member: in place of the host's list of GPUs, those of the list that it has."""
    is_divided = task.variables != task.env
    return {**task.variables, **({"CUDA_VISIBLE_DEVICES": ",".join(task.gpu_ids)} if is_divided else {})}


def check_arguments(arguments: Sequence[str], jobs: Collection[str]) -> None:
    """Raise a ClusterError if a placeholder in a script's arguments names a job that the cluster does not have."""
    for argument in arguments:
        for match in _PLACEHOLDER.finditer(argument):
            if match[2] is not None and match[2] not in jobs:
                raise usage_error(
                    f"{match[0]} in {argument!r}: the cluster has no job {match[2]!r}",
                    f"Its jobs are {', '.join(jobs)}.",
                )


def expand(argument: str, group: Group, member: Member, addresses: Mapping[str, Sequence[str]]) -> str:
    """Replace the placeholders in an argument of a group's script; other braces stay as they are."""
    known = {**group.servers, **addresses}
    values = {
        "job": member.job,
        "index": str(member.index),
        "rank": str(member.rank),
        "world_size": str(len(group.members)),
        "address": addresses[member.job][_position(group, member)],
    }

    def replace(match: re.Match[str]) -> str:
        if match[2] is None:
            return values[match[1]]
        return ",".join(known[match[2]]) if match[2] in known else match[0]

    return _PLACEHOLDER.sub(replace, argument)


def _position(group: Group, member: Member) -> int:
    return sorted(each.index for each in group.members if each.job == member.job).index(member.index)


def place_variables(group: Group, member: Member) -> dict[str, str]:
    """Return the environment variables that say where a member is in its group."""
    neighbors = group.on(member.host)
    return {
        "TFCLUSTER_TASK": member.short,
        "TFCLUSTER_RANK": str(member.rank),
        "TFCLUSTER_WORLD_SIZE": str(len(group.members)),
        "TFCLUSTER_LOCAL_RANK": str(neighbors.index(member)),
        "TFCLUSTER_LOCAL_SIZE": str(len(neighbors)),
        "TFCLUSTER_HOSTS": ",".join(group.hosts),
    }


def distribution_variables(group: Group, member: Member, addresses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the values of DISTRIBUTION_VARIABLES for a member; nothing for one that trains alone, or does not train.

    Neither has a role for a parameter server or an evaluator: all of their clients are tasks of one job.
    """
    clients = [each for each in group.members if each.trains]
    if member not in clients or len(clients) == 1:
        return {}
    count, number = str(len(clients)), str(clients.index(member))
    in_order = {job: iter(each) for job, each in addresses.items()}
    by_rank = {each.rank: next(in_order[each.job]) for each in sorted(group.members, key=lambda each: each.index)}
    of_clients = ",".join(by_rank[each.rank] for each in clients)
    return {
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_JOBS": of_clients,
        "DTENSOR_CLIENT_ID": number,
        "DTENSOR_NUM_CLIENTS": count,
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": of_clients,
        "KERAS_DISTRIBUTION_PROCESS_ID": number,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": count,
    }


class NextStep(Enum):
    """The next action on a group that runs."""

    WAIT = "wait"
    STOP_IDLE = "stop idle"  # workers may continue as long as they compute; those that do not compute only serve
    STOP_OTHERS = "stop others"  # the remaining members are stopped, after `stop_delay`
    SUCCEED = "succeed"
    FAIL = "fail"


def next_step(members: Sequence[Member], exited: Collection[int], has_failed: bool) -> NextStep:
    """Return the next action on a group, given the ranks of the members that have exited.

    Parameter servers and the evaluator serve the other members and may never end by themselves: they are stopped when
    all others have exited. If there are parameter servers and the chief has exited, workers are of two kinds: those of
    a ParameterServerStrategy serve the chief and never end either; those that train by themselves still have work. A
    group in which one member has failed fails.
    """
    remaining = [member for member in members if member.rank not in exited]
    if not remaining:
        return NextStep.FAIL if has_failed else NextStep.SUCCEED
    training = [member for member in members if member.trains] or members
    if has_failed or not any(member in remaining for member in training):
        return NextStep.STOP_OTHERS
    has_ps = any(member.job == PS_JOB for member in members)
    leaders = [member for member in members if member.job in LEADING_JOBS]
    is_led = has_ps and leaders and not any(member in remaining for member in leaders)
    return NextStep.STOP_IDLE if is_led else NextStep.WAIT


def stop_delay(members: Sequence[Member], exited: Collection[int], exit_code: int | None) -> float:
    """Return the seconds for which the remaining members may continue, given the exit code of a failed one, if any."""
    if exit_code is not None:
        return settings.GROUP_PREEMPTION_SECONDS if was_preempted(exit_code) else 0.0
    remaining = [member for member in members if member.rank not in exited]
    if any(member.job == EVALUATOR_JOB for member in remaining):
        return settings.GROUP_EVALUATOR_SECONDS
    return 0.0


def restart_delay(restarts: int, exit_code: int) -> float:
    """Return the seconds before a group is restarted, after a number of restarts and a member's exit code."""
    if was_preempted(exit_code):
        return 0.0
    return min(settings.GROUP_RESTART_SECONDS * 2.0**restarts, settings.GROUP_RESTART_MAX_SECONDS)


def was_preempted(exit_code: int) -> bool:
    """Return whether an exit code says that a program was preempted: it has saved its state, and is to start again."""
    return exit_code in _PREEMPTED
