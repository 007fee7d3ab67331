"""When the lease of a cluster expires, with a fake clock."""

from __future__ import annotations

from tfcluster.agent.context import Lease


class FakeClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_expires_when_no_command_was_in_contact() -> None:
    clock = FakeClock()
    lease = Lease(clock)
    clock.now += 59.9
    assert not lease.has_expired(60.0)
    clock.now += 0.1
    assert lease.has_expired(60.0)
    assert not lease.has_expired(61.0)
    assert not lease.has_expired(None), "without a lease it never expires"


def test_a_command_renews_the_lease() -> None:
    clock = FakeClock()
    lease = Lease(clock)
    clock.now += 50.0
    with lease.renew():
        pass
    clock.now += 59.0
    assert not lease.has_expired(60.0)
    clock.now += 1.0
    assert lease.has_expired(60.0)


def test_the_lease_does_not_expire_while_a_request_is_in_progress() -> None:
    clock = FakeClock()
    lease = Lease(clock)
    with lease.renew():
        with lease.renew():
            clock.now += 500.0
        assert not lease.has_expired(60.0)
        clock.now += 500.0
        assert not lease.has_expired(60.0)
    assert not lease.has_expired(60.0), "it counts from the end of the request"
    clock.now += 60.0
    assert lease.has_expired(60.0)
