"""Health monitor: probes the tasks of this host through the health prober process, at an interval and until ready."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from tfcluster import settings
from tfcluster.agent.helper_process import HelperProcess
from tfcluster.agent.tasks.state_machine import TaskEvent
from tfcluster.agent.tasks.task_runtime import TaskRuntime
from tfcluster.agent.timeout import wait_for
from tfcluster.core.devices import Device
from tfcluster.core.states import HAS_PROCESS, TaskState
from tfcluster.os.tcp_sockets import Counters
from tfcluster.processes.probes import probe as run_prober
from tfcluster.protocol.codec import Message

_logger = logging.getLogger(__name__)

# gRPC's text for ECONNREFUSED.
_REFUSED = "Connection refused"


class ProbeOutcome(Enum):
    """The outcome of a probe."""

    PROBE_OK = auto()  # the server answered
    SILENT = auto()  # the server did not answer
    UNKNOWN = auto()  # the health prober did not answer, or too late, which says nothing about the server


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe."""

    outcome: ProbeOutcome
    devices: tuple[Device, ...] = ()
    incarnation: int = 0  # the random number that identifies the start of the server; 0 without an answer
    refused: bool = False  # whether the connection was refused: no process listens at the address


class ProbeClient(HelperProcess):
    """Sends probes through the health prober process.

    The process is forked at first use, and again after it has died or broken.

    `enter` moves the process, which was just forked, to the network that the servers are in.
    """

    def __init__(self, title: str, enter: Callable[[], None]) -> None:
        super().__init__(title)
        self._enter = enter
        self._identities = itertools.count()
        self._waiting: dict[int, asyncio.Future[Message | None]] = {}

    def prepare(self) -> None:
        """Move the process to the network of the servers."""
        self._enter()

    def run(self, agent: socket.socket) -> None:
        """Probe, in the process."""
        run_prober(agent)

    async def probe(self, address: str, timeout: float, *, clear: str | None = None) -> ProbeResult:
        """Probe the server at an address for its status.

        If `clear` names a resource container, the server clears it instead; the result then has no devices. The server
        has `timeout` seconds to answer.
        """
        sent_at = time.monotonic()
        request = {"address": address, "timeout": timeout, "clear": clear}
        reply = await self._ask(request, timeout + settings.PROBE_BROKEN_SECONDS, is_vital=True)
        if reply is None:
            return ProbeResult(ProbeOutcome.UNKNOWN)
        if "error" not in reply:
            devices = tuple(Device(**device) for device in reply["devices"])
            return ProbeResult(ProbeOutcome.PROBE_OK, devices, reply.get("incarnation", 0))
        if time.monotonic() - sent_at > timeout + settings.PROBE_LATE_SECONDS:
            return ProbeResult(ProbeOutcome.UNKNOWN)
        return ProbeResult(ProbeOutcome.SILENT, refused=_REFUSED in reply["error"])

    async def read_traffic(self, pids: Collection[int], timeout: float) -> dict[int, Counters]:
        """Read what the sockets of processes in the prober's network have moved.

        Return the counters of each process's sockets; of none if they are not known.
        """
        reply = await self._ask({"traffic": list(pids)}, timeout, is_vital=False)
        return {} if reply is None else {pid: {inode: (r, s) for inode, r, s in each} for pid, each in reply["traffic"]}

    async def _ask(self, request: Message, timeout: float, *, is_vital: bool) -> Message | None:
        """Send a request to the prober.

        The request has no number yet. The prober counts as broken after `timeout` seconds. If `is_vital`, it is then
        killed, so that the next request starts another one. Return the reply; None if there is none.
        """
        identity = next(self._identities)
        answer: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        try:
            self.send({"id": identity, **request})
        except OSError:
            return None
        process = self.process
        self._waiting[identity] = answer
        try:
            return await wait_for(answer, timeout)
        except asyncio.TimeoutError:
            if is_vital and self.process == process:
                self.kill()
            return None
        finally:
            self._waiting.pop(identity, None)

    def handle_message(self, message: Message) -> None:
        """Pass a reply to the request that waits for it."""
        waiting = self._waiting.pop(message["id"], None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)


class HealthMonitor:
    """Runs the health checks of a cluster's tasks on this host.

    `feed` dispatches the outcome of a check to the task's state machine.
    """

    def __init__(
        self,
        prober: ProbeClient,
        tasks: Callable[[], Mapping[str, TaskRuntime]],
        feed: Callable[[TaskRuntime, TaskEvent], None],
    ) -> None:
        self._prober = prober
        self._tasks = tasks
        self._feed = feed
        self._background: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Fork the health prober early, so that it has imported gRPC before the first probe.

        Raises:
            OSError: The health prober cannot be forked.
        """
        self._prober.ensure_started()

    def schedule_all(self) -> None:
        """Sample the resource usage of every task, and start a health check of each in the background."""
        for task in self._tasks().values():
            task.sample_usage()
            if task.machine.state in HAS_PROCESS and not task.being_checked:
                self._in_background(self.check(task))

    async def probe_all(self, timeout: float) -> set[TaskRuntime]:
        """Probe all ready tasks concurrently.

        Return the tasks that are not ready or did not answer within `timeout` seconds.
        """
        tasks = self._tasks().values()
        ready = [task for task in tasks if task.machine.state is TaskState.READY]
        results = await asyncio.gather(*(self._prober.probe(task.spec.address, timeout) for task in ready))
        silent = set(tasks) - set(ready)
        for task, result in zip(ready, results, strict=True):
            if result.outcome is ProbeOutcome.PROBE_OK:
                task.devices = result.devices
            elif result.outcome is ProbeOutcome.SILENT:
                silent.add(task)
        return silent

    async def list_devices(self, timeout: float) -> tuple[list[Device], list[str]]:
        """Probe all tasks for their devices.

        Return the devices, and one text for each task that has reported none, with the reason.
        """
        silent = await self.probe_all(timeout)
        answered = [task for task in self._tasks().values() if task not in silent]
        return [device for task in answered for device in task.devices], [
            task.describe_problem() for task in self._tasks().values() if task in silent
        ]

    def poll_until_ready(self, task: TaskRuntime) -> None:
        """Start probing, in the background, a task whose process has reported that it serves, until it is ready."""
        self._in_background(self._until_ready(task))

    async def check(self, task: TaskRuntime, *, tolerate_timeout: bool = False) -> None:
        """Probe a task and dispatch the outcome to its state machine.

        With `tolerate_timeout`, a probe without an answer is ignored instead of counted as failed.
        """
        probed_process = task.process
        task.being_checked = True
        try:
            result = await self._prober.probe(task.spec.address, settings.PROBE_TIMEOUT_SECONDS)
        finally:
            task.being_checked = False
        if probed_process is None or task.process != probed_process:
            return  # the result for a process that has exited says nothing about its successor
        if result.outcome is ProbeOutcome.UNKNOWN or (tolerate_timeout and result.outcome is ProbeOutcome.SILENT):
            return
        if result.outcome is ProbeOutcome.PROBE_OK:
            task.devices = result.devices
        else:
            _logger.info("did not answer a probe", extra={"task": task.spec.short})
        self._feed(task, TaskEvent.PROBE_OK if result.outcome is ProbeOutcome.PROBE_OK else TaskEvent.PROBE_FAILED)

    async def _until_ready(self, task: TaskRuntime) -> None:
        """Probe a task at short intervals until it is ready, because a command may be waiting for it.

        On a busy machine a task may not answer yet although its process has reported that it serves. These probes do
        not count as failed; only the regular health checks do.
        """
        process = task.process
        for _ in range(settings.PROBE_RETRIES):
            await self.check(task, tolerate_timeout=True)
            if task.process != process or task.machine.state is not TaskState.STARTING:
                return
            await asyncio.sleep(settings.PROBE_RETRY_SECONDS)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        checking = asyncio.get_running_loop().create_task(work)
        self._background.add(checking)
        checking.add_done_callback(self._background.discard)
