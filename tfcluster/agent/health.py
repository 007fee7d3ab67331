"""Asking servers whether they answer, by way of the prober process."""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import dataclass
from functools import partial

from tfcluster.agent import children
from tfcluster.agent.children import Child
from tfcluster.model.devices import Device
from tfcluster.protocol.framing import Message, encode
from tfcluster.runtime.prober import probe

#: What the prober adds to a question's own time before it counts as gone.
_MARGIN = 1.0


@dataclass(frozen=True)
class Answer:
    """What a server said: its devices, or why it said nothing."""

    devices: tuple[Device, ...]
    error: str | None


class Prober:
    """The agent's side of the prober; it is forked at first use and again when it died."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._child: Child | None = None
        self._identities = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    def start(self) -> None:
        """Fork the prober, if there is none, so that it is ready when it is needed."""
        if self._child is None:
            child = children.fork(partial(probe, self._title, os.getpid()))
            children.when_ended(child.process, lambda status: None)
            children.read_messages(child.link, self._answered, self._died)
            self._child = child

    async def ask(self, address: str, timeout: float) -> Answer:
        """Ask the server at an address for its status; never raises and takes little more than `timeout` s."""
        self.start()
        assert self._child is not None, "start() has just seen to it"
        identity = next(self._identities)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[identity] = answer
        question = {"id": identity, "address": address, "timeout": timeout}
        try:
            await asyncio.get_running_loop().sock_sendall(self._child.link, encode(question))
            return await asyncio.wait_for(answer, timeout + _MARGIN)
        except (OSError, asyncio.TimeoutError):
            return Answer((), "the prober did not answer")
        finally:
            self._waiting.pop(identity, None)

    def stop(self) -> None:
        """End the prober."""
        if self._child is not None:
            self._child.kill()

    def _answered(self, message: Message) -> None:
        waiting = self._waiting.pop(message["id"], None)
        if waiting is None or waiting.done():
            return
        devices = tuple(Device(**device) for device in message.get("devices", ()))
        waiting.set_result(Answer(devices, message.get("error")))

    def _died(self) -> None:
        self._child = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(Answer((), "the prober died"))
