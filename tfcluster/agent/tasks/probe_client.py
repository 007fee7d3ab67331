"""The agent's client of the health prober process, which probes TensorFlow servers over gRPC."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.core.devices import Device
from tfcluster.processes.probes import probe
from tfcluster.protocol.codec import Message

# gRPC's text for ECONNREFUSED.
_REFUSED = "Connection refused"


class ProbeOutcome(Enum):
    """The outcome of a probe."""

    PROBE_OK = auto()  # the server answered
    SILENT = auto()  # the server did not answer
    UNKNOWN = auto()  # the health prober did not answer, or too late, which says nothing about the server


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe.

    Attributes:
        verdict: The outcome.
        devices: The devices that the server reported.
        incarnation: The random number that identifies the start of the server; 0 without an answer.
        refused: Whether the connection was refused: no process listens at the address.
    """

    verdict: ProbeOutcome
    devices: tuple[Device, ...] = ()
    incarnation: int = 0
    refused: bool = False


class ProbeClient:
    """Sends probes through the health prober process.

    The process is forked at first use, and again after it has died or broken.

    Args:
        title: The process title that `ps` shows.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._child: ChildProcess | None = None
        self._identities = itertools.count()
        self._waiting: dict[int, asyncio.Future[ProbeResult]] = {}

    def start(self) -> None:
        """Fork the health prober unless it runs already, so that it is ready before the first probe.

        Raises:
            OSError: The health prober cannot be forked.
        """
        if self._child is None:
            child = subprocesses.fork_child(partial(probe, self._title, os.getpid()), lambda status: None)
            child.on_message(self._answered, partial(self._ended, child))
            self._child = child

    async def ask(self, address: str, timeout: float, *, clear: str | None = None) -> ProbeResult:
        """Probe the server at an address for its status.

        Args:
            address: The server's address, as `host:port`.
            timeout: Seconds that the server has to answer.
            clear: The resource container that the server shall clear instead; the result then has no devices. None to
                probe the status.

        Returns:
            The result of the probe.
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
            told = await asyncio.wait_for(answer, timeout + settings.PROBE_BROKEN_SECONDS)
            late = time.monotonic() - asked > timeout + settings.PROBE_LATE_SECONDS
            return ProbeResult(ProbeOutcome.UNKNOWN) if late and told.verdict is ProbeOutcome.SILENT else told
        except asyncio.TimeoutError:
            child.kill()  # the next probe forks a new one
            return ProbeResult(ProbeOutcome.UNKNOWN)
        finally:
            self._waiting.pop(identity, None)

    def stop(self) -> None:
        """Kill the health prober and wait until it has exited."""
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
