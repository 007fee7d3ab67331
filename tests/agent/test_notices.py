"""An unreachable host is reported once, by the head task's host; a target that hangs delays no other one."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster import settings
from tfcluster.agent.notices import IncidentMonitor, Notifier, post
from tfcluster.agent.tasks.health import ProbeOutcome, ProbeResult
from tfcluster.core.notices import Notice, environment_of, host_notice, run_notice, task_notice
from tfcluster.core.states import TaskState
from tfcluster.core.topology import Notify

OK, SILENT = ProbeResult(ProbeOutcome.PROBE_OK), ProbeResult(ProbeOutcome.SILENT, reason="timed out after 4 s")
REFUSED = ProbeResult(ProbeOutcome.SILENT, reason="Connection refused")
UNKNOWN = ProbeResult(ProbeOutcome.UNKNOWN)
#: The tasks of each host.
TASKS = {"alpha": ["a"], "beta": ["b", "c"], "gamma": ["d"]}
LEADING = "alpha"


class Watch:
    """A host's watch of the others, whose tasks answer as `results` says; `probed` has the tasks that were asked."""

    def __init__(self, host: str) -> None:
        self.results = dict.fromkeys("abcd", OK)
        self.probed: list[str] = []
        topology: Any = SimpleNamespace(
            cluster="demo",
            has_servers=True,
            hosts=[SimpleNamespace(name=name) for name in TASKS],
            notify=Notify(None, "true", ("host-away",)),
            on=lambda name: tuple(SimpleNamespace(address=task) for task in TASKS[name]),
            head=lambda: SimpleNamespace(host=LEADING),
        )
        supervisor: Any = SimpleNamespace(topology=topology, host=host)
        self.told: list[str] = []
        self.watch = IncidentMonitor("demo", supervisor, cast(Any, self), cast(Any, self))

    def add(self, notice: Notice) -> None:
        self.told.append(notice["host"])

    async def probe(self, address: str, timeout: float) -> ProbeResult:
        self.probed.append(address)
        return self.results[address]

    async def check(self, **results: ProbeResult) -> list[str]:
        """Check the hosts after some tasks have changed, and return those with new notices."""
        self.results.update(results)
        self.told.clear()
        self.watch.schedule_check()
        await asyncio.gather(*self.watch._checks.tasks.values())
        return list(self.told)


async def test_a_host_is_unreachable_when_its_first_task_neither_answers_nor_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)
    watch = Watch("alpha")
    assert await watch.check() == []
    assert await watch.check(b=REFUSED) == []
    assert await watch.check(b=UNKNOWN) == []
    assert await watch.check(b=SILENT) == ["beta"]
    assert await watch.check() == [], "once"
    assert await watch.check(b=UNKNOWN) == []
    assert await watch.check(b=SILENT) == [], "nothing was learned of it in between"
    assert await watch.check(b=OK) == []
    assert await watch.check(b=SILENT, d=SILENT) == ["beta", "gamma"]


async def test_only_a_host_that_answers_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    watch = Watch("alpha")
    assert await watch.check(b=SILENT, d=SILENT) == ["beta", "gamma"]
    with monkeypatch.context() as without:
        without.setitem(TASKS, "gamma", [])  # it was removed from the cluster
        assert await watch.check(b=UNKNOWN) == []
    assert "answers again" not in caplog.text
    assert await watch.check(b=REFUSED) == ["gamma"]
    assert "host beta answers again" in caplog.text


@pytest.mark.parametrize(
    ("leading", "empty", "probed"),
    [
        ("alpha", None, {"alpha": "bd", "beta": "", "gamma": ""}),
        ("gamma", None, {"alpha": "", "beta": "", "gamma": "ab"}),
        ("beta", "alpha", {"alpha": "", "beta": "d", "gamma": ""}),
    ],
)
async def test_the_head_tasks_host_alone_asks_one_task_of_each_other_host(
    monkeypatch: pytest.MonkeyPatch, leading: str, empty: str | None, probed: dict[str, str]
) -> None:
    monkeypatch.setattr("tests.agent.test_notices.LEADING", leading)
    monkeypatch.setattr(settings, "HOST_AWAY_SECONDS", 0.0)
    if empty is not None:
        monkeypatch.setitem(TASKS, empty, [])
    silent = dict.fromkeys("abcd", SILENT)
    for host, tasks in probed.items():
        watch = Watch(host)
        away = await watch.check(**silent)
        assert "".join(watch.probed) == tasks
        assert away == [next(name for name in TASKS if task in TASKS[name]) for task in tasks]


async def test_an_outage_is_reported_after_some_time() -> None:
    watch = Watch("alpha")
    assert await watch.check(b=SILENT) == []
    watch.watch._silent_since["beta"] -= settings.HOST_AWAY_SECONDS
    assert await watch.check() == ["beta"]


NOTICES = [host_notice("demo", host, 30.0, 0.0, "timed out after 4 s") for host in ("alpha", "beta", "gamma")]


def notifier(command: str, *, events: tuple[str, ...] = ("host-away",)) -> Notifier:
    supervisor: Any = SimpleNamespace(topology=SimpleNamespace(notify=Notify(None, command, events)))
    return Notifier("title", supervisor)


def queued(notices: Notifier) -> list[str]:
    return [each.notice["host"] for each in notices.waiting]


async def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The first one is being delivered."""
    monkeypatch.setattr(settings, "NOTICES_MAX", 2)
    notices = notifier("true")
    for notice in NOTICES:
        notices.add(notice)
    assert queued(notices) == ["alpha", "gamma"]
    assert "too many notices: 'demo: host beta has not answered" in caplog.text
    await notices.flush(0.0)


async def test_only_kinds_that_the_spec_names_are_queued_and_the_command_of_a_run() -> None:
    notices = notifier("true", events=("task-failed",))
    notices.add(NOTICES[0])
    assert queued(notices) == []
    notices.add(NOTICES[1], command="true")
    assert queued(notices) == ["beta"]
    await notices.flush(0.0)


async def test_a_notice_is_given_up_after_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(settings.NOTICE_RETRY_SECONDS) == 2, "three attempts"
    monkeypatch.setattr(settings, "NOTICE_RETRY_SECONDS", (0.0, 0.0))
    caplog.set_level(logging.INFO)
    out = tmp_path / "out"
    notices = notifier(f"echo x >> {out}; exit 1")
    notices.add(NOTICES[0])
    while queued(notices):
        await asyncio.sleep(0.01)
    assert out.read_text() == "x\n" * 3
    assert "giving up: exit code 1" in caplog.text
    assert caplog.text.count("retrying in 0 s") == 2


@pytest.mark.timeout(60)  # it fails by waiting
async def test_a_command_that_hangs_is_ended_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "NOTICE_RETRY_SECONDS", ())
    monkeypatch.setattr(settings, "NOTICE_SECONDS", 3.0)
    out = tmp_path / "out"
    notices = notifier(f"sleep 987 & echo $$ $! >> {out}; wait")
    notices.add(NOTICES[0])
    while queued(notices):
        await asyncio.sleep(0.01)
    assert "giving up: it did not end within 3 s" in caplog.text
    shell, child = out.read_text().split()
    assert not Path(f"/proc/{shell}").exists()
    while Path(f"/proc/{child}").exists():  # init reaps it
        await asyncio.sleep(0.01)


@pytest.mark.timeout(60)  # it fails by waiting
async def test_a_notice_that_is_added_when_the_last_one_has_just_been_delivered(tmp_path: Path) -> None:
    out = tmp_path / "out"
    notices = notifier(f"echo $TFCLUSTER_NOTICE_HOST >> {out}")
    for notice in NOTICES:
        notices.add(notice)
        while queued(notices):
            await asyncio.sleep(0)  # nothing else of the event loop happens in between
    assert out.read_text() == "alpha\nbeta\ngamma\n"


async def test_an_error_of_one_attempt_drops_no_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "NOTICE_RETRY_SECONDS", (0.0, 0.0))
    attempts, socketpair = iter([MemoryError("no memory")]), socket.socketpair

    def fail_once() -> tuple[socket.socket, socket.socket]:
        for error in attempts:
            raise error
        return socketpair()

    monkeypatch.setattr(socket, "socketpair", fail_once)  # for the process that delivers
    out = tmp_path / "out"
    notices = notifier(f"echo $TFCLUSTER_NOTICE_HOST >> {out}")
    for notice in NOTICES:
        notices.add(notice)
    while queued(notices):
        await asyncio.sleep(0.01)
    assert out.read_text() == "alpha\nbeta\ngamma\n"
    assert "retrying in 0 s: MemoryError" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.timeout(60)  # it fails by waiting
async def test_the_end_of_a_cluster_does_not_wait_for_another_attempt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "NOTICE_RETRY_SECONDS", (600.0, 600.0))
    notices = notifier("exit 1")
    notices.add(NOTICES[0])
    notices.add(NOTICES[1])
    await notices.flush(600.0)
    assert [line for line in caplog.messages if line.startswith("the cluster is down")] == [
        f"the cluster is down: {notice['text']!r} was not delivered to the command 'exit 1'" for notice in NOTICES[:2]
    ]


@pytest.mark.timeout(60)  # it fails by waiting
async def test_a_target_that_hangs_delays_no_other_one_and_is_ended_with_the_cluster(tmp_path: Path) -> None:
    out, began = tmp_path / "out", tmp_path / "began"
    notices = notifier(f"echo $PPID > {began}; sleep 600")
    notices.add(NOTICES[0])
    while not began.exists() or not began.read_text():
        await asyncio.sleep(0.01)
    notices.add(NOTICES[1], command=f"echo x >> {out}")
    while queued(notices) != ["alpha", "beta"]:  # both are for the target that hangs
        await asyncio.sleep(0.01)
    assert out.read_text() == "x\n"
    await notices.flush(0.0)
    while queued(notices) or Path(f"/proc/{began.read_text().strip()}").exists():
        await asyncio.sleep(0.01)


def failed_task(name: str) -> Any:
    spec, machine = SimpleNamespace(short=name), SimpleNamespace(state=TaskState.FAILED)
    last_exit, text = SimpleNamespace(time=1.0), f"{name} has failed"
    return SimpleNamespace(spec=spec, machine=machine, last_exit=last_exit, describe_problem=lambda: text)


def test_a_failure_is_told_once_and_not_again_by_the_next_agent() -> None:
    told: list[str] = []
    supervisor: Any = SimpleNamespace(host="a", tasks={name: failed_task(name) for name in ("w:0", "w:1")})
    notices: Any = SimpleNamespace(add=lambda notice: told.append(notice["task"]))
    monitor = IncidentMonitor("demo", supervisor, cast(Any, None), notices)
    states = {"w:0": TaskState.FAILED, "w:1": TaskState.STARTING}
    record: Any = SimpleNamespace(tasks={name: SimpleNamespace(state=state) for name, state in states.items()})
    monitor.adopt(record)
    monitor.note_failed_tasks()
    assert told == ["w:1"], "it has failed while there was no agent"
    monitor.note_failed_tasks()
    supervisor.tasks["w:0"].last_exit.time = 2.0
    monitor.note_failed_tasks()
    assert told == ["w:1", "w:0"]


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
    variables = environment_of(task_notice("demo", "alpha", "worker:0", "died", 1.0))
    assert (variables["TFCLUSTER_NOTICE_TASK"], variables["TFCLUSTER_NOTICE_HOST"]) == ("worker:0", "alpha")
