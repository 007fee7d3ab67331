"""When a cluster ends that nobody asks after: a pretended clock."""

from __future__ import annotations

from tfcluster.agent.lease import Lease


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_is_over_when_no_command_came_for_so_long() -> None:
    clock = Clock()
    lease = Lease(clock)
    clock.now += 59.9
    assert not lease.is_over(60.0)
    clock.now += 0.1
    assert lease.is_over(60.0)
    assert not lease.is_over(61.0)
    assert not lease.is_over(None), "without a lease it goes on for ever"


def test_a_command_renews_it() -> None:
    clock = Clock()
    lease = Lease(clock)
    clock.now += 50.0
    with lease.contact():
        pass
    clock.now += 59.0
    assert not lease.is_over(60.0)
    clock.now += 1.0
    assert lease.is_over(60.0)


def test_it_is_not_over_while_a_command_follows_something() -> None:
    clock = Clock()
    lease = Lease(clock)
    with lease.contact():
        with lease.contact():
            clock.now += 500.0
        assert not lease.is_over(60.0)
        clock.now += 500.0
        assert not lease.is_over(60.0)
    assert not lease.is_over(60.0), "it counts from the command's end"
    clock.now += 60.0
    assert lease.is_over(60.0)
