"""An unreachable host is reported once, by the first reachable host; a server that is down is no unreachable host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster import settings
from tfcluster.agent.notices import IncidentMonitor, Notifier
from tfcluster.agent.tasks.health import ProbeOutcome, ProbeResult
from tfcluster.core.topology import Notify

OK, SILENT = ProbeResult(ProbeOutcome.PROBE_OK), ProbeResult(ProbeOutcome.SILENT)
REFUSED = ProbeResult(ProbeOutcome.SILENT, refused=True)
UNKNOWN = ProbeResult(ProbeOutcome.UNKNOWN)
#: The tasks of each host.
TASKS = {"alpha": ["a"], "beta": ["b", "c"], "gamma": ["d"]}


class Watch:
    """A host's watch of the others, whose tasks answer as `results` says.

    Args:
        path: The file of the notices.
        host: The name of the host.
    """

    def __init__(self, path: Path, host: str) -> None:
        self.results = dict.fromkeys("abcd", OK)
        notify = Notify(None, "true", ("host-away",))
        topology: Any = SimpleNamespace(
            cluster="demo",
            has_servers=True,
            hosts=[SimpleNamespace(name=name) for name in TASKS],
            notify=notify,
            on=lambda name: tuple(SimpleNamespace(address=task) for task in TASKS[name]),
        )
        supervisor: Any = SimpleNamespace(topology=topology, host=host)
        self.notifier = Notifier("title", path, supervisor)
        self.notifier.load()
        self.watch = IncidentMonitor("demo", supervisor, cast(Any, self), self.notifier)

    async def probe(self, address: str, timeout: float) -> ProbeResult:
        return self.results[address]

    async def check(self, **results: ProbeResult) -> list[str]:
        """Check the hosts after some tasks have changed, and return those with new notices."""
        self.results.update(results)
        before = len(self.notifier._state.queue)
        self.watch.schedule_check()
        assert self.watch._checking is not None
        await self.watch._checking
        return [each.notice["host"] for each in self.notifier._state.queue[before:]]


def test_a_host_is_unreachable_when_none_of_its_tasks_answers_or_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)

    async def play() -> None:
        watch = Watch(tmp_path / "notices", "alpha")
        assert await watch.check() == []
        assert await watch.check(b=SILENT) == []
        assert await watch.check(c=REFUSED) == []
        assert await watch.check(c=UNKNOWN) == []
        assert await watch.check(c=SILENT) == ["beta"]
        assert await watch.check() == [], "once"
        assert await Watch(tmp_path / "notices", "alpha").check(b=SILENT, c=SILENT) == [], "also for the next agent"
        assert await watch.check(c=OK) == []
        assert await watch.check(d=SILENT) == ["gamma"]

    asyncio.run(play())


def test_a_check_whose_probes_are_done_writes_nothing_after_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)
    answered = asyncio.Event()

    async def play() -> None:
        watch = Watch(tmp_path / "notices", "alpha")
        probe = watch.probe

        async def slow(address: str, timeout: float) -> ProbeResult:
            await answered.wait()
            return await probe(address, timeout)

        watch.probe = slow  # type: ignore[method-assign]
        checking = asyncio.ensure_future(watch.check(d=SILENT))
        await asyncio.sleep(0)
        answered.set()
        await asyncio.sleep(0)  # the probes go on, and the check has not gone on yet
        watch.watch.stop()
        with pytest.raises(asyncio.CancelledError):
            await checking
        assert not (tmp_path / "notices").exists()

    asyncio.run(play())


def test_the_first_reachable_host_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)

    async def play() -> None:
        watch = Watch(tmp_path / "notices", "beta")
        assert await watch.check(d=SILENT) == [], "alpha reports it"
        assert await watch.check(a=SILENT) == ["alpha", "gamma"]

    asyncio.run(play())


def test_a_host_without_tasks_reports_nothing_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)
    monkeypatch.setitem(TASKS, "alpha", [])

    async def play() -> None:
        assert await Watch(tmp_path / "alpha", "alpha").check(d=SILENT) == []
        assert await Watch(tmp_path / "beta", "beta").check(d=SILENT) == ["gamma"]

    asyncio.run(play())


def test_a_host_is_unreachable_after_some_time(tmp_path: Path) -> None:
    async def play() -> None:
        watch = Watch(tmp_path / "notices", "alpha")
        assert await watch.check(d=SILENT) == []
        watch.watch._silent_since["gamma"] -= settings.HOST_AWAY_SECONDS
        assert await watch.check() == ["gamma"]

    asyncio.run(play())


def test_an_outage_is_reported_once_though_agents_change_or_a_probe_of_the_reporter_is_lost(tmp_path: Path) -> None:
    async def play() -> None:
        watch = Watch(tmp_path / "notices", "alpha")
        await watch.check(b=SILENT, c=SILENT)
        watch.watch._silent_since["beta"] -= settings.HOST_AWAY_SECONDS
        assert await watch.check() == ["beta"]
        following = Watch(tmp_path / "notices", "alpha")
        assert await following.check(b=SILENT, c=SILENT) == []
        following.watch._silent_since["beta"] -= settings.HOST_AWAY_SECONDS
        assert await following.check() == []

        other = Watch(tmp_path / "others", "gamma")
        await other.check(b=SILENT, c=SILENT)
        other.watch._silent_since["beta"] -= settings.HOST_AWAY_SECONDS
        assert await other.check(a=SILENT) == [], "alpha is not unreachable yet, and reports it"

    asyncio.run(play())


def test_a_host_that_was_cut_off_withdraws_what_it_could_not_deliver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)

    async def play() -> None:
        watch = Watch(tmp_path / "notices", "beta")

        def queued() -> list[str]:
            return [each.notice["host"] for each in watch.notifier._state.queue]

        assert await watch.check(a=SILENT, d=SILENT) == ["alpha", "gamma"]
        await watch.check(a=SILENT)
        assert queued() == ["alpha", "gamma"], "they are tried again"
        await watch.check(d=OK)
        assert queued() == [], "beta was cut off: it reported what others do not see"
        await watch.check(a=OK)
        assert await watch.check(a=SILENT) == ["alpha"]
        await watch.check(a=OK)
        assert queued() == ["alpha"], "beta saw another host meanwhile, so alpha was unreachable"

    asyncio.run(play())
