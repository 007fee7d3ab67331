"""Waiting with a timeout: results, failures, timeouts and cancellations, also of what is just done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tfcluster.agent.event_loop import wait_for


def run(coroutine: Any) -> Any:
    logged: list[dict[str, Any]] = []

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        try:
            return await coroutine
        finally:
            await asyncio.sleep(0)

    try:
        return asyncio.run(main())
    finally:
        assert logged == []


def test_the_result_or_the_failure_is_that_of_the_awaitable() -> None:
    assert run(wait_for(asyncio.sleep(0, "slept"), None)) == "slept"

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(wait_for(fail(), 60))


def test_what_takes_longer_is_cancelled() -> None:
    async def wait() -> bool:
        future = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError):
            await wait_for(future, 0.01)
        return future.cancelled()

    assert run(wait())


@pytest.mark.parametrize("outcome", ["done", "failed", "pending"])
def test_a_cancellation_is_not_lost(outcome: str) -> None:
    async def cancel() -> asyncio.Task[Any]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiter = asyncio.ensure_future(wait_for(future, 60))
        await asyncio.sleep(0)
        if outcome == "done":
            future.set_result("done")
        elif outcome == "failed":
            future.set_exception(ValueError("no"))
        waiter.cancel()
        await asyncio.wait({waiter})
        assert future.done()
        return waiter

    assert run(cancel()).cancelled()
