"""How a command tries to reach a host again that it has lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.transport.errors import HostUnreachableError

_ATTEMPTS = 30


class RecordingContext(StreamContext):
    """Records the pauses and the messages instead of making them."""

    def __init__(self) -> None:
        super().__init__("alpha", self.messages_append)
        self.pauses: list[float] = []
        self.messages: list[str] = []

    def messages_append(self, text: str) -> None:
        self.messages.append(text)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_a_host_that_is_back_is_soon_tried_again_however_long_it_was_away() -> None:
    context = RecordingContext()
    client = cast(AgentClient, SimpleNamespace(transport=SimpleNamespace(is_remote=True)))
    reconnector: Reconnector[Any, Any] = Reconnector(client, context, RetryPolicy(1))

    def reach() -> str:
        if len(context.pauses) < _ATTEMPTS:
            raise HostUnreachableError("alpha", "no route to host")
        return "reached"

    assert reconnector.connect(reach) == "reached"
    assert max(context.pauses) <= 1.0  # an attempt of ssh itself repeats its packets for some seconds
    assert context.messages == [
        "host 'alpha' cannot be reached: no route to host, trying again",
        "alpha: connected again",
    ]
