"""Asking servers whether they answer, by way of the prober process."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from tfcluster.agent import subprocesses
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.core.devices import Device
from tfcluster.processes.health_prober import probe
from tfcluster.protocol.codec import Message

#: What the prober may take longer than a question's own time before it counts as broken: importing gRPC, a busy host.
_MARGIN = 10.0
# How much later than a question's own time its answer may come. A later one shows that the prober, this agent or the
# whole machine (suspended, swapping) stood still, and then the server had no fair chance to answer either.
_LATE = 1.0
# As gRPC words ECONNREFUSED.
_REFUSED = "Connection refused"


class ProbeOutcome(Enum):
    """What came of a question."""

    PROBE_OK = auto()  # the server answered
    SILENT = auto()  # the server did not
    UNKNOWN = auto()  # the prober did not, or not in time, which says nothing of the server


@dataclass(frozen=True)
class ProbeResult:
    """What came of a question.

    Attributes:
        verdict: Who answered.
        devices: The devices that the server named.
        incarnation: A number that the server drew when it started; 0 without an answer.
        refused: Nobody listens at the address, says its machine.
    """

    verdict: ProbeOutcome
    devices: tuple[Device, ...] = ()
    incarnation: int = 0
    refused: bool = False


class ProbeClient:
    """The agent's side of the prober; it is forked at first use, and again when it died or broke."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._child: ChildProcess | None = None
        self._identities = itertools.count()
        self._waiting: dict[int, asyncio.Future[ProbeResult]] = {}

    def start(self) -> None:
        """Fork the prober, if there is none, so that it is ready when it is needed.

        Raises:
            OSError: It cannot be forked.
        """
        if self._child is None:
            child = subprocesses.fork_child(partial(probe, self._title, os.getpid()), lambda status: None)
            child.on_message(self._answered, partial(self._ended, child))
            self._child = child

    async def ask(self, address: str, timeout: float, *, clear: str | None = None) -> ProbeResult:
        """Ask the server at an address for its status.

        Args:
            address: `host:port`.
            timeout: Seconds that the server has to answer.
            clear: Have it clear this container instead; the answer then has no devices.
        """
        try:
            self.start()
        except OSError:
            return ProbeResult(ProbeOutcome.UNKNOWN)
        child = self._child
        assert child is not None, "start() has just seen to it"
        identity = next(self._identities)
        answer: asyncio.Future[ProbeResult] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = answer
        asked = time.monotonic()
        child.send({"id": identity, "address": address, "timeout": timeout, "clear": clear})
        try:
            told = await asyncio.wait_for(answer, timeout + _MARGIN)
            late = time.monotonic() - asked > timeout + _LATE
            return ProbeResult(ProbeOutcome.UNKNOWN) if late and told.verdict is ProbeOutcome.SILENT else told
        except asyncio.TimeoutError:
            child.kill()  # the next question forks another
            return ProbeResult(ProbeOutcome.UNKNOWN)
        finally:
            self._waiting.pop(identity, None)

    def stop(self) -> None:
        """End the prober."""
        if self._child is not None:
            self._child.kill()
            self._child.reap()

    def _answered(self, message: Message) -> None:
        waiting = self._waiting.pop(message["id"], None)
        if waiting is None or waiting.done():
            return
        devices = tuple(Device(**device) for device in message.get("devices", ()))
        verdict = ProbeOutcome.SILENT if "error" in message else ProbeOutcome.PROBE_OK
        refused = _REFUSED in message.get("error", "")
        waiting.set_result(ProbeResult(verdict, devices, message.get("incarnation", 0), refused))

    def _ended(self, child: ChildProcess) -> None:
        if self._child is child:
            self._child = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(ProbeResult(ProbeOutcome.UNKNOWN))
