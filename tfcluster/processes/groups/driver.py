"""The driver of a run that consists of a group's processes, as far as launches and sweeps have it in common.

It connects the hosts, the one that it runs on included, and records what the processes print.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, NoReturn

from tfcluster import settings
from tfcluster.core.groups import Group
from tfcluster.core.run_events import CoordinatorEvent, RunEvent
from tfcluster.core.topology import join_address
from tfcluster.errors import ClusterError
from tfcluster.os import daemonize
from tfcluster.os.network import Address
from tfcluster.os.process_handle import is_stopped_by_signal
from tfcluster.processes.groups.host import GroupHost
from tfcluster.processes.groups.link import (
    End,
    GroupLink,
    GroupListener,
    Order,
    Output,
    Report,
    SignalOrder,
    Stop,
)
from tfcluster.processes.groups.member_states import MemberState, write_states
from tfcluster.processes.runs.code_tree import clear_tree
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.processes.runs.stored_output import OutputRecorder
from tfcluster.processes.runs.streams import STDERR
from tfcluster.processes.runs.supervised_program import (
    HOST_END_SIGNAL,
    TERMINAL_SIGNALS,
    USER_SIGNALS,
    wake_on_signals,
)
from tfcluster.protocol.codec import Message

Source = tuple[str, str]  # the short name of the member's task, and the stream
NEVER = float("inf")
# The signals that members get as they are; they have no terminal whose size could change.
_PASSED_SIGNALS = ({*TERMINAL_SIGNALS} | {*USER_SIGNALS}) - {signal.SIGWINCH}


class LineBuffer:
    """Passes output on (`write(stream, data, task)`) when its line is complete, or after a short time.

    A prompt or a progress bar, which have no newline, thus appear soon.
    """

    def __init__(self, write: Callable[[str, bytes, str], None]) -> None:
        self._write = write
        self._held: dict[Source, tuple[bytes, float]] = {}  # until when to hold it, on the monotonic clock

    def add(self, stream: str, data: bytes, task: str) -> None:
        """Take what has arrived on a stream of a member."""
        source = task, stream
        held, until = self._held.pop(source, (b"", NEVER))
        data = held + data
        end = len(data) if len(data) > settings.LOG_LINE_MAX_BYTES else data.rfind(b"\n") + 1
        if end:
            self._write(stream, data[:end], task)
        if rest := data[end:]:
            # Of a bar that is drawn again and again, what came first says for how long all of it is held.
            is_new = until == NEVER or end > 0
            self._held[source] = rest, time.monotonic() + settings.GROUP_LINE_SECONDS if is_new else until

    def seconds_left(self) -> float:
        """Return how long nothing has to be passed on; infinity if nothing is held."""
        return max(0.0, min((until for _, until in self._held.values()), default=NEVER) - time.monotonic())

    def pass_on(self, task: str | None = None) -> None:
        """Pass on what was held for long enough, and all of a member that has exited."""
        now = time.monotonic()
        for source, (data, until) in list(self._held.items()):
            if now >= until or source[0] == task:
                del self._held[source]
                self._write(source[1], data, source[0])

    def close(self) -> None:
        """Pass on all that is held."""
        for task, _ in list(self._held):
            self.pass_on(task)


class LastLines:
    """Keeps the last lines of a member's output."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=settings.GROUP_FAILURE_LINES)
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Add what the member has printed."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-settings.RUN_OUTPUT_LINE_MAX_BYTES :]
        self.lines.extend(line.decode(errors="replace").rstrip() for line in lines if line.strip())


class GroupDriver:
    """Connects the hosts of a group, gives them orders, and reads their reports, until the group has ended.

    `cluster` has the addresses that may connect to this process; None if all may.
    """

    def __init__(self, plan: RunPlan, group: Group, cluster: Collection[Address] | None) -> None:
        self._plan = plan
        self._group = group
        self._cluster = cluster
        self._recorder = OutputRecorder(plan.folder, plan.output_limit)
        self._lines = LineBuffer(self._recorder.append)
        self._outputs: dict[int, LastLines] = {}  # of the members, by the numbers that reports have of them
        self._states: dict[str, MemberState] = {}  # by the short names of the members
        self._written_states: dict[str, MemberState] = {}
        self._poll = select.poll()
        self._links: dict[int, GroupLink] = {}
        self._listener: GroupListener | None = None
        self._wakeup: socket.socket | None = None
        self._started_at = time.monotonic()
        self._local_host: int | None = None
        self._is_interrupted = self._is_cancelled = False
        self._end_at = NEVER  # when the group ends, whatever has exited
        self._ready_by = self._started_at + settings.GROUP_START_SECONDS  # when the hosts must be ready

    def _has_ended(self) -> bool:
        """Return whether the group has ended; take the steps that are due."""
        raise NotImplementedError

    def _timers(self) -> Iterable[float]:
        """Return the times at which `_check_timers` has something to do."""
        raise NotImplementedError

    def _check_timers(self) -> None:
        """Take the steps whose time has come."""
        raise NotImplementedError

    def _on_connected(self) -> None:
        """Note that a host has connected."""
        raise NotImplementedError

    def _on_lost(self, host: str) -> None:
        """Note that the connection to a host is lost."""
        raise NotImplementedError

    def _take(self, host: str, report: Report) -> None:
        """Take a report of a host that is not about output."""
        raise NotImplementedError

    def _name_of(self, number: int) -> str:
        """Return the short name of the member of a report."""
        raise NotImplementedError

    def _final_event(self) -> tuple[int, RunEvent]:
        """Return the exit code of the run and its final event."""
        raise NotImplementedError

    @property
    def _connected(self) -> set[str]:
        return {link.host for link in self._links.values()}

    def _connect(self) -> None:
        """Start the process for the members on this host, and listen for the other hosts."""
        if self._group.on(self._plan.host):
            self._fork_local_host()
        self._wakeup = wake_on_signals()
        self._poll.register(self._wakeup, select.POLLIN)
        if others := [host for host in self._group.hosts if host != self._plan.host]:
            self._listen(others)

    def _fork_local_host(self) -> None:
        """Fork the process that starts the members on this host."""
        own, other = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            own.detach()
            daemonize.set_parent_death_signal(parent)
            daemonize.become_subreaper()  # that of this process, the driver, is not inherited
            daemonize.close_fds({0, 1, 2, other.fileno()})
            daemonize.set_process_title(f"tfcluster: {self._plan.cluster} {self._plan.run} host")
            try:
                link = GroupLink(other, self._plan.host)
                os._exit(GroupHost(self._plan, self._group, link, self._cluster).run())
            except SystemExit:
                raise
            except BaseException:  # the coordinator notices that the connection is closed
                traceback.print_exc()
                os._exit(1)
        other.close()
        self._local_host = pid
        self._admit(GroupLink(own, self._plan.host))

    def _listen(self, others: list[str]) -> None:
        """Listen for other hosts, and tell the command the address, which it passes on to them."""
        if self._listener is not None:
            self._listener.close()
        self._listener = GroupListener(self._group.secret, others, self._cluster, self._poll, self._plan.ports)
        address = join_address(self._group.address_host, self._listener.port)
        self._plan.write(CoordinatorEvent(address, others))

    def _admit(self, link: GroupLink) -> None:
        self._links[link.fileno()] = link
        self._poll.register(link, select.POLLIN)
        if self._connected == set(self._group.hosts) and self._listener is not None:
            self._listener.close()
            self._listener = None
        self._on_connected()

    def _order(self, order: Order, host: str | None = None) -> None:
        """Send an order to a host, by default to all; a host that is lost is noticed when its reports are read."""
        for link in self._links.values():
            if host in (None, link.host):
                with contextlib.suppress(OSError):
                    link.send(order)

    def run(self) -> NoReturn:
        """Drive the group to its end, write the final event of the run, and exit."""
        while not self._has_ended():
            seconds = max(0.0, min(self._timers()) - time.monotonic())
            timeout = min(settings.DRIVER_POLL_SECONDS, seconds, self._lines.seconds_left())
            for fd, _ in self._poll.poll(1000 * timeout):
                self._handle(fd)
            self._lines.pass_on()
            if self._states != self._written_states:
                self._written_states = dict(self._states)
                write_states(self._plan.folder, self._states)
            self._continue_local_host()
            self._check_timers()
        self._finish()

    def _continue_local_host(self) -> None:
        """Continue the process that starts the members on this host if a signal has stopped it."""
        if self._local_host is not None and is_stopped_by_signal(self._local_host):
            os.kill(self._local_host, signal.SIGCONT)  # it has not been reaped, so the pid is its own

    def _handle(self, fd: int) -> None:
        if self._wakeup is not None and fd == self._wakeup.fileno():
            self._handle_signals(self._wakeup.recv(1 << 10))
        elif fd in self._links:
            self._read_reports(fd)
        elif self._listener is not None and (link := self._listener.handle(fd)) is not None:
            self._admit(link)

    def _handle_signals(self, numbers: bytes) -> None:
        self._is_interrupted |= signal.SIGINT in numbers
        for number in filter(_PASSED_SIGNALS.__contains__, numbers):
            self._order(SignalOrder(number))
        if signal.SIGTERM in numbers:
            self._stop_all(settings.DRIVER_TERMINATE_SECONDS)
        elif HOST_END_SIGNAL in numbers and not self._is_cancelled:  # it may arrive more than once
            self._stop_all(settings.JOB_END_SECONDS)

    def _stop_all(self, seconds: float) -> None:
        self._is_cancelled = True
        self._end_at = time.monotonic() + seconds
        self._order(Stop(seconds))

    def _read_reports(self, fd: int) -> None:
        link = self._links[fd]
        try:
            reports: list[Report] | None = link.receive()
        except ClusterError:
            reports = None
        if reports is None:
            self._poll.unregister(fd)
            del self._links[fd]
            link.close()
            self._on_lost(link.host)
            return
        for report in reports:
            if isinstance(report, Output):
                data = report.data.encode(errors="surrogateescape")
                self._outputs[report.rank].add(data)
                self._lines.add(report.stream, data, self._name_of(report.rank))
            else:
                self._take(link.host, report)

    def _note(self, name: str, **fields: Any) -> None:
        """Note what is new of a member, unless the report is of a previous attempt."""
        if name in self._states:
            self._states[name] = replace(self._states[name], **fields)

    def _write(self, event: RunEvent | Message) -> None:
        """Write an event; a full disk must not end the group, and at its end the agent notices it too."""
        with contextlib.suppress(ClusterError):
            self._plan.write(event)

    def _finish(self) -> NoReturn:
        """Write the final event, let the hosts exit, and exit."""
        self._lines.close()
        code, event = self._final_event()
        self._order(End(code))
        if warning := clear_tree(self._plan):
            self._recorder.append(STDERR, f"{warning}\n".encode())
        self._write(event)
        os._exit(code)
