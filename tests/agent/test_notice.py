"""A notice wakes who waits, also for a change that came between the look and the waiting."""

from __future__ import annotations

import asyncio

import pytest

from tfcluster.agent.change_notifier import ChangeNotifier


def test_a_change_between_the_look_and_the_waiting_is_not_lost() -> None:
    async def look_then_wait() -> None:
        notice = ChangeNotifier()
        seen = notice.count
        notice.tell()
        await asyncio.wait_for(notice.since(seen), 10)

    asyncio.run(look_then_wait())


def test_a_change_wakes_everybody_and_once() -> None:
    async def several_wait() -> None:
        notice = ChangeNotifier()
        waiting = [asyncio.ensure_future(notice.since(notice.count)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        notice.tell()
        await asyncio.gather(*waiting)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(notice.since(notice.count), 0)

    asyncio.run(several_wait())


def test_whoever_waits_until_something_is_done_looks_at_each_change() -> None:
    async def look() -> tuple[list[int], int]:
        notice, done = ChangeNotifier(), asyncio.get_running_loop().create_future()
        seen = []
        async for _ in notice.until(done):
            seen.append(notice.count)
            if len(seen) == 1:
                notice.tell()  # while the look is on its way
            elif len(seen) == 2:
                asyncio.get_running_loop().call_soon(notice.tell)
            else:
                asyncio.get_running_loop().call_soon(done.set_result, None)
        await asyncio.sleep(0)  # what was cancelled ends
        return seen, len(asyncio.all_tasks())

    assert asyncio.run(look()) == ([0, 1, 2], 1)
