"""When an agent that has nothing to do exits."""

from __future__ import annotations

import asyncio
from typing import cast

from tfcluster.agent.context import AgentContext
from tfcluster.agent.rpc.rpc_connection import Dispatcher
from tfcluster.agent.rpc.rpc_server import RpcServer


class IdleAgent:
    """An agent without a cluster."""

    is_idle = True

    def __init__(self) -> None:
        self.quitting = asyncio.Event()


def test_a_later_exit_replaces_one_that_was_scheduled_before() -> None:
    async def play() -> None:
        agent = IdleAgent()
        server = RpcServer(cast(AgentContext, agent), cast(Dispatcher, None))
        server._schedule_idle_exit(0.0)
        server._schedule_idle_exit(3600.0)  # an `up` has run the preflight meanwhile, and its next request is to come
        for _ in range(10):
            await asyncio.sleep(0)
        assert not agent.quitting.is_set()
        server._schedule_idle_exit(0.0)
        await asyncio.wait_for(agent.quitting.wait(), 30)

    asyncio.run(play())
