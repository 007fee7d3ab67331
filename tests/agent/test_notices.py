"""An unreachable host is reported once, by the host that watches it; a server that is down is no unreachable host."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster import settings
from tfcluster.agent.notices import IncidentMonitor, Notifier, post
from tfcluster.agent.tasks.health import ProbeOutcome, ProbeResult
from tfcluster.core.notices import environment_of, host_notice, run_notice
from tfcluster.core.topology import Notify

OK, SILENT = ProbeResult(ProbeOutcome.PROBE_OK), ProbeResult(ProbeOutcome.SILENT, reason="timed out after 4 s")
REFUSED = ProbeResult(ProbeOutcome.SILENT, reason="Connection refused")
UNKNOWN = ProbeResult(ProbeOutcome.UNKNOWN)
#: The tasks of each host.
TASKS = {"alpha": ["a"], "beta": ["b", "c"], "gamma": ["d"]}
LEADING = "alpha"


class Watch:
    """A host's watch of the others, whose tasks answer as `results` says; `probed` has the tasks that were asked."""

    def __init__(self, path: Path, host: str) -> None:
        self.results = dict.fromkeys("abcd", OK)
        self.probed: list[str] = []
        notify = Notify(None, "true", ("host-away",))
        topology: Any = SimpleNamespace(
            cluster="demo",
            has_servers=True,
            hosts=[SimpleNamespace(name=name) for name in TASKS],
            notify=notify,
            on=lambda name: tuple(SimpleNamespace(address=task) for task in TASKS[name]),
            head=lambda: SimpleNamespace(host=LEADING),
        )
        supervisor: Any = SimpleNamespace(topology=topology, host=host)
        self.notifier = Notifier("title", path, supervisor)
        self.notifier.load()
        self.watch = IncidentMonitor("demo", supervisor, cast(Any, self), self.notifier)

    async def probe(self, address: str, timeout: float) -> ProbeResult:
        self.probed.append(address)
        return self.results[address]

    async def check(self, **results: ProbeResult) -> list[str]:
        """Check the hosts after some tasks have changed, and return those with new notices."""
        self.results.update(results)
        before = len(self.notifier._state.queue)
        self.watch.schedule_check()
        await asyncio.gather(*self.watch._checks.tasks.values())
        return [each.notice["host"] for each in self.notifier._state.queue[before:]]


async def test_a_host_is_unreachable_when_its_first_task_neither_answers_nor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)
    watch = Watch(tmp_path / "notices", "alpha")
    assert await watch.check() == []
    assert await watch.check(b=REFUSED) == []
    assert await watch.check(b=UNKNOWN) == []
    assert await watch.check(b=SILENT) == ["beta"]
    assert await watch.check() == [], "once"
    assert await Watch(tmp_path / "notices", "alpha").check(b=SILENT) == [], "also for the next agent"
    assert await watch.check(b=OK) == []
    assert await watch.check(d=SILENT) == ["gamma"]


async def test_a_check_whose_probes_are_done_writes_nothing_after_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)
    answered = asyncio.Event()
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


@pytest.mark.parametrize(
    ("leading", "empty", "probed"),
    [
        ("alpha", None, {"alpha": "bd", "beta": "a", "gamma": ""}),
        ("gamma", None, {"alpha": "d", "beta": "", "gamma": "ab"}),
        ("beta", "alpha", {"alpha": "", "beta": "d", "gamma": "b"}),
    ],
)
async def test_the_leading_host_asks_one_task_of_each_host_and_the_next_host_asks_the_leading_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leading: str, empty: str | None, probed: dict[str, str]
) -> None:
    monkeypatch.setattr("tests.agent.test_notices.LEADING", leading)
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)
    if empty is not None:
        monkeypatch.setitem(TASKS, empty, [])
    silent = dict.fromkeys("abcd", SILENT)
    for host, tasks in probed.items():
        watch = Watch(tmp_path / host, host)
        away = await watch.check(**silent)
        assert "".join(watch.probed) == tasks
        assert away == [next(name for name in TASKS if task in TASKS[name]) for task in tasks]


async def test_an_outage_is_reported_after_some_time_and_once_though_agents_change(tmp_path: Path) -> None:
    for noticed in (["beta"], []):
        watch = Watch(tmp_path / "notices", "alpha")
        assert await watch.check(b=SILENT) == []
        watch.watch._silent_since["beta"] -= settings.HOST_AWAY_SECONDS
        assert await watch.check() == noticed


NOTICES = [host_notice("demo", host, 30.0, 0.0, "timed out after 4 s") for host in ("alpha", "beta", "gamma")]


def notifier(path: Path, command: str, *, events: tuple[str, ...] = ("host-away",)) -> Notifier:
    supervisor: Any = SimpleNamespace(topology=SimpleNamespace(notify=Notify(None, command, events)))
    made = Notifier("title", path, supervisor)
    made.load()
    return made


def queued(notices: Notifier) -> list[str]:
    return [each.notice["host"] for each in notices._state.queue]


async def test_the_queue_is_bounded_and_has_each_notice_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "NOTICES_MAX", 2)
    notices = notifier(tmp_path / "queue", "true")
    for notice in (*NOTICES, NOTICES[-1]):
        notices.add(notice)
    assert queued(notices) == ["beta", "gamma"]
    assert "too many notices: 'demo: host alpha has not answered" in caplog.text
    assert queued(notifier(tmp_path / "queue", "true")) == ["beta", "gamma"], "for the next agent"


async def test_only_kinds_that_the_spec_names_are_queued_and_the_command_of_a_run(tmp_path: Path) -> None:
    notices = notifier(tmp_path / "queue", "true", events=("task-failed",))
    notices.add(NOTICES[0])
    assert queued(notices) == []
    notices.add(NOTICES[1], command="true")
    assert queued(notices) == ["beta"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"queue": [{}], "reported": []}', b"[]", b'{"queue": 3, "reported": []}', b'{"format": 99}'],
)
async def test_a_queue_that_cannot_be_read_is_empty_and_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "queue").write_bytes(content)
    notices = notifier(tmp_path / "queue", "true")
    assert queued(notices) == []
    notices.add(NOTICES[0])
    assert (tmp_path / "queue.unreadable").read_bytes() == content


async def test_a_notice_is_given_up_after_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "NOTICE_BACKOFF_SECONDS", (0.0, 0.0))
    caplog.set_level(logging.INFO)
    out = tmp_path / "out"
    notices = notifier(tmp_path / "queue", f"echo x >> {out}; exit 1")
    running = asyncio.ensure_future(notices.run())
    notices.add(NOTICES[0])
    while queued(notices):
        await asyncio.sleep(0.01)
    running.cancel()
    assert out.read_text() == "x\n" * 3
    assert "giving up: exit code 1" in caplog.text
    assert caplog.text.count("retrying in 0 s") == 2


class Webhook(BaseHTTPRequestHandler):
    """Answers with the status that its path names, and notes what it gets."""

    received: list[tuple[str, str, bytes]] = []  # noqa: RUF012 - of all requests

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, self.headers["Content-Type"], body))
        self.send_response(int(self.path.rpartition("/")[2]))
        self.send_header("Location", "/secret/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """Be where a redirection leads to."""
        self.headers["Content-Length"] = "0"
        self.do_POST()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


def test_what_a_webhook_gets_and_which_answers_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Webhook, "received", [])
    with HTTPServer(("127.0.0.1", 0), Webhook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/secret/"
        statuses = (200, 204, 302, 303, 404, 500)
        outcomes = [post(f"{url}{status}", NOTICES[0]) for status in statuses]
        server.shutdown()
    assert outcomes == [None, None, *(f"HTTP status {status}" for status in statuses[2:])]
    assert [path for path, _, _ in Webhook.received] == [f"/secret/{status}" for status in statuses]
    assert {kind for _, kind, _ in Webhook.received} == {"application/json"}
    assert [json.loads(body) for _, _, body in Webhook.received] == [NOTICES[0]] * len(statuses)
    for wrong in (url, "http://a b/secret", "http://[secret", "nothing://secret"):  # nothing listens there any more
        assert "secret" not in (post(wrong, NOTICES[0]) or "secret")


def test_the_variables_of_a_command_are_those_of_its_notice() -> None:
    result = {"run": "pi-1", "program": "pi", "state": "succeeded", "seconds": 1.0, "result": {"pi": 3.0}}
    variables = environment_of(run_notice("demo", {"event": "result", **result}))
    assert variables == {
        "TFCLUSTER_CLUSTER": "demo",
        "TFCLUSTER_NOTICE": "run-finished",
        "TFCLUSTER_NOTICE_TEXT": "demo: pi-1 succeeded after 1.0 s",
        "TFCLUSTER_NOTICE_STATE": "succeeded",
        "TFCLUSTER_NOTICE_EXIT_CODE": "0",
        "TFCLUSTER_RUN": "pi-1",
    }
    error = {"message": "no data\nat all", "hint": "", "exit_code": 4}
    failed = run_notice("demo", {"event": "result", **result, "state": "failed", "error": error})
    assert (failed["exit_code"], failed["text"]) == (4, "demo: pi-1 failed after 1.0 s: no data")
    variables = environment_of(NOTICES[0])
    assert (variables["TFCLUSTER_NOTICE_HOST"], "TFCLUSTER_RUN" in variables) == ("alpha", False)
