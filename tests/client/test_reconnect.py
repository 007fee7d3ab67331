"""How a command tries to reach a host again that it has lost."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from tfcluster.client.rpc.agent_client import AgentClient, AgentDisconnectedError
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.rpc.reconnect import Reconnector, RetryPolicy
from tfcluster.client.runs.runs import RunResponse, read_records
from tfcluster.protocol.api.runs import EventRecord
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


class BrokenResponse:
    """A response of an agent that dies after an event, before the response is complete."""

    timeout = 10.0

    def __init__(self, event: str) -> None:
        self._events: Iterator[str] = iter([event])

    def __next__(self) -> EventRecord:
        for event in self._events:
            return EventRecord({"event": event})
        raise AgentDisconnectedError("the agent died")

    def close_and_reap(self) -> None: ...


def test_the_result_of_a_run_arrives_once_if_the_agent_dies_right_after_it() -> None:
    client = cast(AgentClient, SimpleNamespace(transport=SimpleNamespace(is_remote=False)))
    responses = [BrokenResponse("started"), BrokenResponse("result"), BrokenResponse("result")]
    records = read_records(client, RecordingContext(), lambda: cast(RunResponse, responses.pop(0)))
    assert [record["event"] for record in records] == ["started", "result"]
    assert len(responses) == 1, "the command does not ask again for what it has"
