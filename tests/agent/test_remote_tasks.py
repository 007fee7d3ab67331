"""How the head's agent monitors the tasks on other hosts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster import settings
from tfcluster.agent.runs.remote_tasks import RemoteTaskMonitor
from tfcluster.agent.tasks.health import ProbeOutcome, ProbeResult
from tfcluster.core.devices import Device

W1 = "/job:worker/task:1"
TOPOLOGY = topology_of(
    [
        task_of("worker:0", "a", port=1),
        task_of("worker:1", "b", port=2),
        task_of("worker:2", "b", port=3, address_host="10.0.0.2"),
    ]
)
SILENT, REFUSED = (ProbeResult(ProbeOutcome.SILENT, reason=why) for why in ("late", "Connection refused"))
DEVICE = Device("/job:worker/replica:0/task:1/device:CPU:0", "CPU")
FIRST, SECOND = ProbeResult(ProbeOutcome.PROBE_OK, (DEVICE,), 17), ProbeResult(ProbeOutcome.PROBE_OK, (DEVICE,), 18)


class World:
    """The tasks on b, whose answers are given, the last of them again and again; it notes what is told of them."""

    def __init__(self, **answers: list[ProbeResult]) -> None:
        self.answers = {"localhost:2": answers.get("one", [FIRST]), "10.0.0.2:3": answers.get("two", [FIRST])}
        self.probed: list[str] = []
        self.used = {W1}
        self.news: list[dict[str, str]] = []
        supervisor: Any = SimpleNamespace(host="a", topology=TOPOLOGY)
        prober: Any = self
        self.monitor = RemoteTaskMonitor(supervisor, prober, lambda: self.used, self.note)

    async def probe(self, address: str, timeout: float) -> ProbeResult:
        self.probed.append(address)
        answers = self.answers[address]
        return answers.pop(0) if answers[1:] else answers[0]

    def note(self) -> None:
        self.news.append(dict(self.monitor.down))

    async def check(self, times: int = 1) -> None:
        for _ in range(times):
            self.monitor.schedule_checks()
            while self.monitor._checks.tasks:
                await asyncio.sleep(0)


async def test_only_tasks_that_a_run_uses_are_probed() -> None:
    world = World()
    world.used = set()
    await world.check()
    assert world.probed == []
    world.used = {W1, "/job:worker/task:0"}
    await world.check()
    assert world.probed == ["localhost:2"], "the task of this host is none of ours"


NO_ANSWER, REFUSES, RESTARTED = (
    {W1: f"worker:1 at localhost:2 on b {what}"}
    for what in ("does not answer (late)", "does not answer (Connection refused)", "was restarted")
)
MAX = settings.FAILED_PROBES_MAX


@pytest.mark.parametrize(
    ("answers", "news"),
    [
        ([FIRST, *[SILENT] * (MAX - 1), FIRST, *[SILENT] * MAX, FIRST], [NO_ANSWER, {}]),
        ([FIRST, REFUSED, REFUSED, FIRST], [REFUSES, {}]),
        ([FIRST, FIRST, SECOND, SECOND], [RESTARTED, {}]),
        ([FIRST, *[ProbeResult(ProbeOutcome.UNKNOWN)] * 2 * MAX, FIRST], []),
    ],
    ids=["silent", "refused", "another incarnation", "unknown"],
)
async def test_a_task_is_down_after_as_many_failed_probes_as_on_this_host_a_refusal_or_a_restart(
    answers: list[ProbeResult], news: list[dict[str, str]]
) -> None:
    world = World(one=answers)
    await world.check(len(answers))
    assert world.news == news


async def test_refresh_probes_the_tasks_in_use_at_once() -> None:
    world = World(one=[FIRST, SECOND])
    await world.check()
    await world.monitor.refresh()
    assert world.news[0] == RESTARTED
    assert world.probed == ["localhost:2"] * 2


async def test_a_restart_between_two_runs_affects_neither() -> None:
    world = World(one=[FIRST, SECOND])
    for used in ({W1}, set(), {W1}):
        world.used = used
        await world.check()
    assert world.news == []


async def test_probe_all_retries_refused_connections_and_reports_silent_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RUN_REMOTE_PROBE_RETRY_SECONDS", 0.0)
    world = World(one=[REFUSED, REFUSED, FIRST], two=[REFUSED])
    devices, troubles = await world.monitor.probe_all()
    assert devices == [DEVICE], "it came back while it was asked again"
    assert troubles == {"/job:worker/task:2": "worker:2 at 10.0.0.2:3 on b does not answer (Connection refused)"}


async def test_probe_all_asks_a_silent_task_again_and_remembers_the_devices_of_the_last_answer() -> None:
    world = World(one=[SILENT, FIRST, SILENT])
    assert await world.monitor.probe_all() == ([DEVICE, DEVICE], {}), "over another connection"
    devices, missing = await world.monitor.probe_all()
    assert devices == [DEVICE, DEVICE]
    assert list(missing) == [W1]


async def test_probe_all_does_not_hide_a_restart_from_an_active_run() -> None:
    world = World(one=[FIRST, SECOND])
    await world.check()
    await world.monitor.probe_all()
    assert world.news == [RESTARTED, {}], "the run to come may begin"
