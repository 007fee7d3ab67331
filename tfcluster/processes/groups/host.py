"""A host of a group: the process that starts the group's members on one host, as the coordinator orders."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tfcluster import settings
from tfcluster.core.caller import OutputStreams
from tfcluster.core.environment import gpu_variables
from tfcluster.core.groups import (
    Group,
    Member,
    MemberObservation,
    distribution_variables,
    expand,
    place_variables,
)
from tfcluster.core.sweep_grid import parse_template
from tfcluster.core.tf_config import make_tf_config
from tfcluster.core.trials import as_member
from tfcluster.errors import ClusterError
from tfcluster.os import procfs
from tfcluster.os.network import Address, bind_free_port
from tfcluster.os.process_handle import is_frozen
from tfcluster.processes.groups.link import (
    End,
    Exited,
    GroupLink,
    Measured,
    Observed,
    Order,
    Output,
    Ports,
    Report,
    Reserve,
    SignalOrder,
    Start,
    Started,
    StartTrial,
    Stop,
    StopIdle,
    Unable,
)
from tfcluster.processes.groups.member_states import read_observations
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.processes.runs.supervised_program import (
    HOST_END_SIGNAL,
    SupervisedProgram,
    reap_orphans,
    restore_signals,
    wake_on_signals,
)
from tfcluster.protocol.codec import Message


@dataclass
class _Watched:
    """A member that is watched: its pid, and the processor time that it had used when it was measured last."""

    pid: int
    used: float


class IdleMembers:
    """Watches members for those that do not compute over a period."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._ended: set[int] = set()
        self._seconds = 0.0
        self._due_at = 0.0

    def watch(self, pids: Mapping[int, int], seconds: float) -> None:
        """Watch members from now on.

        `pids` has the pids of the members, by rank. A period takes `seconds`.
        """
        self._seconds, self._due_at = seconds, time.monotonic() + seconds
        self._watched = {rank: _Watched(pid, _processor_seconds(pid)) for rank, pid in pids.items()}
        self._ended.clear()

    def seconds_left(self) -> float:
        """Return the seconds until `take_idle` may have a result; infinite if no member is watched."""
        return max(0.0, self._due_at - time.monotonic()) if self._watched else float("inf")

    def take_idle(self) -> list[int]:
        """Return the ranks of the members that have not computed over the period that has just ended, to end them."""
        if self.seconds_left() > 0:
            return []
        self._due_at = time.monotonic() + self._seconds
        idle = []
        for rank, each in list(self._watched.items()):
            before, each.used = each.used, _processor_seconds(each.pid)
            if each.used - before < settings.GROUP_IDLE_CPU_PERCENT / 100 * self._seconds:
                idle.append(rank)
                del self._watched[rank]
        self._ended.update(idle)
        return idle

    def forget(self, rank: int) -> bool:
        """Watch a member no more, as it has exited; return whether it was ended because it did not compute."""
        self._watched.pop(rank, None)
        return rank in self._ended


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a member: its process group, which has the processes of a data loader, too."""
    ticks = 0
    for each in procfs.pids():
        try:
            fields = procfs.stat_fields(each)
        except OSError:  # it has exited, and is counted by its parent from then on
            continue
        if int(fields[procfs.GROUP]) == pid:
            ticks += sum(map(int, fields[procfs.USER_TICKS : procfs.WAITED_SYSTEM_TICKS + 1]))
    return ticks / procfs.TICKS


class GroupHost:
    """Starts and supervises the members of a group on this host.

    `cluster` has the addresses that may connect to the ports of the members; None if all may.
    """

    def __init__(self, plan: RunPlan, group: Group, link: GroupLink, cluster: Collection[Address] | None) -> None:
        self._plan = plan
        self._group = group
        self._link = link
        self._cluster = cluster
        self._members = group.on(plan.host)
        self._ports: list[socket.socket] = []
        self._programs: dict[int, SupervisedProgram] = {}
        self._idle = IdleMembers()
        self._observations: dict[int, MemberObservation] = {}  # as reported, by rank
        self._poll = select.poll()
        # Whether the connection to the coordinator was lost before the group had ended.
        self.is_coordinator_lost = False
        self._wakeup = wake_on_signals()

    def run(self) -> int:
        """Follow orders until the last one, or until the coordinator is lost; no member is left then.

        Return the exit code of the group; 1 if the coordinator is lost. Raises ScriptStart: in the process of a member.
        """
        self._poll.register(self._link, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)
        code: int | None = None
        while code is None or self._programs:
            for fd, events in self._poll.poll(1000 * self._seconds_left()):
                if fd == self._wakeup.fileno():
                    self._handle_signals(self._wakeup.recv(1 << 10))
                elif fd == self._link.fileno():
                    code = self._receive() if code is None else code
                elif not any(program.handle(fd, events) for program in list(self._programs.values())):
                    self._poll.unregister(fd)
            if self._group.coordinator is not None:  # else its agent is the coordinator's own
                self._report_observations()
            for rank in self._idle.take_idle():
                self._programs[rank].terminate(settings.GROUP_STOP_SECONDS)
            for rank, program in list(self._programs.items()):
                program.check_time()
                if program.has_exited:
                    self._report_exit(rank, program)
            if code is None and not self._plan.folder.exists():
                code = self._leave()
        return code

    def _seconds_left(self) -> float:
        seconds = [program.seconds_left() for program in self._programs.values()]
        if self._group.coordinator is not None and self._programs:
            seconds.append(settings.WAIT_CHECK_SECONDS)
        return min([settings.DRIVER_POLL_SECONDS, self._idle.seconds_left(), *seconds])

    def _handle_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:  # the agent ends its part of the run
            self._terminate(settings.DRIVER_TERMINATE_SECONDS)
        elif HOST_END_SIGNAL in numbers and self._group.coordinator is not None:  # else the coordinator orders it
            self._terminate(settings.JOB_END_SECONDS)
        reap_orphans([program.pid for program in self._programs.values()])

    def _leave(self) -> int:
        """End all members, whose exits are not reported. Return the exit code."""
        self._poll.unregister(self._link)
        self._terminate(settings.DRIVER_TERMINATE_SECONDS)
        return 1

    def _receive(self) -> int | None:
        """Follow the orders that have arrived; return the exit code with the last one."""
        try:
            orders: list[Order] | None = self._link.receive()
        except ClusterError:
            orders = None
        if orders is None:
            self.is_coordinator_lost = True
            return self._leave()
        for order in orders:
            if isinstance(order, End):
                self._leave()
                return order.exit_code
            try:
                self._carry_out(order)
            except (OSError, ClusterError) as error:
                text = error.message if isinstance(error, ClusterError) else str(error.strerror)
                self._report(Unable(f"host {self._plan.host}: {text}"))
        return None

    def _carry_out(self, order: Order) -> None:
        """Follow one order."""
        if isinstance(order, Reserve):
            for each in self._ports:
                each.close()
            self._ports = [_reserve_port(self._plan.ports) for _ in self._members]
            self._report(Ports([each.getsockname()[1] for each in self._ports]))
        elif isinstance(order, Start):
            for member in self._members:
                self._start(member, order)
        elif isinstance(order, StartTrial):
            self._start_trial(order)
        elif isinstance(order, Stop):
            for rank, program in self._programs.items():
                if is_frozen(program.pid):  # perhaps what the others have failed of
                    self._report(Observed(rank, MemberObservation(is_frozen=True)))
            self._terminate(order.seconds)
        elif isinstance(order, StopIdle):
            pids = {rank: program.pid for rank, program in self._programs.items() if self._group.members[rank].trains}
            self._idle.watch(pids, order.seconds)
        elif isinstance(order, SignalOrder):
            for program in self._programs.values():
                program.pass_on(order.number)

    def _start(self, member: Member, order: Start) -> None:
        arguments = [expand(each, self._group, member, order.addresses) for each in self._plan.options.arguments]
        environment = {
            **distribution_variables(self._group, member, order.addresses),
            **member.env,
            "TF_CONFIG": json.dumps(make_tf_config(order.addresses, member.job, member.index)),
            **place_variables(self._group, member),
            "TFCLUSTER_ADDRESS": member.address(self._port_of(member)),
        }
        self._start_program(member.rank, member, arguments, environment, order.attempt)

    def _start_trial(self, order: StartTrial) -> None:
        """Start a trial, or report why it has failed."""
        options = self._plan.options
        assert options.sweep is not None, "it has trials"
        trial = as_member(self._group.members[order.place], order.trial)
        arguments = parse_template(options.arguments).fill(options.sweep.trials[order.trial])
        environment = {
            **trial.env,
            "TF_CONFIG": json.dumps(make_tf_config({}, "worker", 0)),
            **place_variables(replace(self._group, members=(trial,)), trial),
            "TFCLUSTER_TRIAL": str(order.trial),
        }
        try:
            self._start_program(order.trial, trial, arguments, environment, order.attempt)
        except (OSError, ClusterError) as error:
            reason = error.message if isinstance(error, ClusterError) else error.strerror
            failure = f"it cannot start on host {trial.host}: {reason}"
            self._report(Exited(order.trial, 1, failure, was_idle=False))

    def _start_program(
        self, number: int, member: Member, arguments: list[str], environment: Mapping[str, str], attempt: int
    ) -> None:
        """Start the process of a member; reports have its number as their `rank`."""
        plan = replace(
            self._plan.with_parameters({**self._plan.options.parameters, "args": arguments}),
            streams=OutputStreams(),
            group=None,
            trial=environment.get("TFCLUSTER_TRIAL"),
            spans_hosts=len(self._group.hosts) > 1,
            member={
                **gpu_variables({**os.environ, **member.env}, member.gpu_ids),
                **environment,
                "TFCLUSTER_ATTEMPT": str(attempt),
            },
        )
        plan.output_folder.mkdir(mode=0o700, exist_ok=True)
        sink = _MemberOutput(self._report, number)
        report = partial(self._report_measured, number)
        program = SupervisedProgram(plan, self._poll, sink, None, self._cluster, report, self._release)
        self._programs[number] = program
        self._observations[number] = MemberObservation()
        self._report(Started(number, program.pid))

    def _port_of(self, member: Member) -> int:
        port: int = self._ports[self._members.index(member)].getsockname()[1]
        return port

    def _release(self) -> None:
        """Give up, in the process of a member, what belongs to this process."""
        restore_signals()
        self._link.detach()
        for program in self._programs.values():
            program.detach()
        sockets: list[socket.socket] = [self._wakeup, *self._ports]
        for each in sockets:
            each.detach()

    def _terminate(self, seconds: float) -> None:
        for program in self._programs.values():
            program.terminate(seconds)

    def _report_exit(self, rank: int, program: SupervisedProgram) -> None:
        code = program.reap()
        program.close()
        del self._programs[rank]
        failure, hint = (program.oom_note, "") if program.end is None else (program.end.failure, program.end.hint)
        self._report(Exited(rank, code, failure, was_idle=self._idle.forget(rank), hint=hint))

    def _report_observations(self) -> None:
        observations = read_observations(self._plan.folder)
        for rank, program in self._programs.items():
            observation = observations.get(program.pid, MemberObservation())
            if observation != self._observations[rank]:
                self._observations[rank] = observation
                self._report(Observed(rank, observation))

    def _report_measured(self, rank: int, event: Message) -> None:
        self._report(Measured(rank, event))

    def _report(self, report: Report) -> None:
        with contextlib.suppress(OSError):  # the coordinator is lost, which the next order to read shows
            self._link.send(report)


class _MemberOutput:
    """Sends what a member prints to the coordinator."""

    def __init__(self, report: Callable[[Output], None], rank: int) -> None:
        self._report = report
        self._rank = rank

    def append(self, stream: str, data: bytes) -> None:
        """Send what has arrived on a stream."""
        self._report(Output(self._rank, stream, data.decode(errors="surrogateescape")))


def _reserve_port(ports: Sequence[int]) -> socket.socket:
    """Bind a free port, which the kernel gives to no other process; a gRPC server of this user can still bind it."""
    bound = bind_free_port(ports)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after the bind, as gRPC sets it too
    return bound
