"""Probes of servers, which the health prober sends: a process, so that a server that hangs does not block the agent."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from tfcluster import settings
from tfcluster.agent.subprocesses import HelperProcess
from tfcluster.core.devices import Device
from tfcluster.processes.probes import probe as run_prober
from tfcluster.protocol.codec import Message

_REFUSED = os.strerror(errno.ECONNREFUSED)


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
    reason: str = ""  # why the server did not answer, such as `Connection refused`; empty if it did

    @property
    def refused(self) -> bool:
        """Return whether the connection was refused: no process listens at the address."""
        return self.reason == _REFUSED


def with_reason(text: str, reason: str) -> str:
    """Return a text that says that a server does not answer, with the reason of its probe, if there is one."""
    return f"{text} ({reason})" if reason else text


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
        reply = await self._ask(request, timeout + settings.PROBE_BROKEN_SECONDS)
        if reply is None:
            return ProbeResult(ProbeOutcome.UNKNOWN)
        if "error" not in reply:
            devices = tuple(Device(**device) for device in reply["devices"])
            return ProbeResult(ProbeOutcome.PROBE_OK, devices, reply.get("incarnation", 0))
        if time.monotonic() - sent_at > timeout + settings.PROBE_LATE_SECONDS:
            return ProbeResult(ProbeOutcome.UNKNOWN)
        return ProbeResult(ProbeOutcome.SILENT, reason=reply["error"])

    async def _ask(self, request: Message, timeout: float) -> Message | None:
        """Send a request to the prober.

        The request has no number yet. After `timeout` seconds, the prober counts as broken and is killed, so that the
        next request starts another one. Return the reply; None if there is none.
        """
        identity = next(self._identities)
        try:
            self.send({"id": identity, **request})
        except OSError:
            return None
        process = self.process
        answer: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = answer
        try:
            await asyncio.wait({answer}, timeout=timeout)
        finally:
            self._waiting.pop(identity, None)
        if answer.done():
            return answer.result()
        if self.process == process:
            self.kill()
        return None

    def stop(self) -> None:
        """Kill the health prober and wait until it has exited; the next probe starts another one."""
        super().stop()
        self.handle_exit()

    def handle_message(self, message: Message) -> None:
        """Pass a reply to the request that waits for it."""
        if message["id"] in self._waiting:
            self._waiting.pop(message["id"]).set_result(message)

    def handle_exit(self) -> None:
        """Let the requests that wait have no reply."""
        while self._waiting:
            self._waiting.popitem()[1].set_result(None)
