"""When an agent that has nothing to do ends."""

from __future__ import annotations

import asyncio
from typing import cast

from tfcluster.agent.agent import Agent
from tfcluster.agent.rpc_server import RpcServer


class Idle:
    """A service without a cluster."""

    idle = True

    def __init__(self) -> None:
        self.quitting = asyncio.Event()


def test_an_agent_that_is_awaited_does_not_end_when_it_would_have_before() -> None:
    async def play() -> None:
        service = Idle()
        server = RpcServer(cast(Agent, service))
        server._quit_if_idle(0.0)
        server._quit_if_idle(3600.0)  # an `up` has prepared meanwhile, and its next request is to come
        for _ in range(10):
            await asyncio.sleep(0)
        assert not service.quitting.is_set()
        server._quit_if_idle(0.0)
        await asyncio.wait_for(service.quitting.wait(), 30)

    asyncio.run(play())
