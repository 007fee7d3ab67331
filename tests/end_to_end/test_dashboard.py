"""`tfcluster dashboard` in a real browser, and what its server refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import quote, urlsplit

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.browser import Browser, open_browser
from tests.conftest import SCRIPTS, Sandbox, wait_for
from tests.served_page import Served, serve_page
from tfcluster import settings
from tfcluster.core.log_levels import LogLevel, entry_level
from tfcluster.dashboard.api import Api
from tfcluster.dashboard.server import PageServer


@pytest.fixture(scope="module")
def served(demo: Sandbox) -> Iterator[Served]:
    """The page of the example cluster."""
    with serve_page(demo) as links:
        yield Served.of(links["url"])


@pytest.fixture(scope="module")
def browser(needs_browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def training(demo: Sandbox) -> Iterator[str]:
    """A run of a script that reports and prints until the test ends."""
    flag = demo.spec("", "training")
    run = demo("run", "--detach", SCRIPTS / "report_loss.py", flag).stdout.strip()
    yield run
    flag.unlink(missing_ok=True)
    demo("wait", run, code=None)  # a test may have cancelled it


def points(browser: Browser) -> int:
    """Return how many points the table of the curve `loss` has."""
    return int(browser.run("return document.querySelectorAll('[data-metric=loss] tbody tr').length"))


def is_live(browser: Browser) -> bool:
    return browser.text("#link") == "live"


def refuse(browser: Browser) -> None:
    """Answer the question of the page with no."""
    browser.click("dialog button:not(.danger)")
    wait_for(lambda: not browser.run("return document.querySelector('dialog').open"))


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {"Authorization": None}),
        (401, {"Authorization": "Bearer wrong"}),
        (401, {"Authorization": "Basic {token}"}),
        (403, {"Host": "attacker.example:{port}"}),
        (403, {"Host": "127.0.0.1.attacker.example:{port}"}),
        (403, {"Origin": "http://attacker.example"}),
        (403, {"Origin": "http://127.0.0.1:1"}),
        (403, {"Origin": "null"}),
        (200, {"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}),
    ],
)
def test_who_may_ask(served: Served, status: int, headers: dict[str, str | None]) -> None:
    port = urlsplit(served.base).port
    given = {name: value and value.format(port=port, token=served.token) for name, value in headers.items()}
    answer = served.request("/metrics", headers=given)
    assert answer[0] == status
    assert ("tfcluster_task_state" in answer[1]) == (status == 200)
    if "Authorization" not in headers:  # the page itself says nothing of the cluster, but to its host
        assert served.request("/", headers=given)[0] == status


def test_the_page_is_on_the_loopback_address_alone() -> None:
    with PageServer(0, cast(Api, None), "token") as server:
        port = server.server_address[1]
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


def test_nothing_is_restarted_of_which_the_page_has_not_named_the_loss(demo: Sandbox, served: Served) -> None:
    pid = demo.task("ps:0")["pid"]
    for body in ({"task": "ps:0"}, {"task": "ps:0", "accepted": []}, {"task": "ps:0", "accepted": ["a run"]}):
        status, text, _ = served.request("/api/restart", "POST", json.dumps(body).encode())
        assert status == 200
        assert json.loads(text) == {"restarts": False, "tasks": ["ps:0"], "losses": ["the variables of ps:0"]}
    assert demo.task("ps:0")["pid"] == pid


def test_requests_that_make_no_sense(served: Served) -> None:
    assert served.request("/api/nothing")[0] == 404
    assert served.request("/../__init__.py")[0] == 404
    assert served.request("/api/cancel", "POST", b"[]")[0] == 400
    assert served.request("/api/cancel", "POST", b"{}")[0] == 400
    assert served.request("/api/restart", "POST", b'{"task": "worker:0", "accepted": 5}')[0] == 400
    assert served.request("/api/logs?since=yesterday")[0] == 400
    assert served.request("/api/logs?until=nan")[0] == 400
    status, text, _ = served.request("/api/logs?grep=(")
    assert (status, json.loads(text)["message"].partition(":")[0]) == (400, "'(' is not a regular expression")
    status, text, _ = served.request("/api/cancel", "POST", b'{"run": "no-such-run"}')
    assert (status, json.loads(text)["message"]) == (400, "no run 'no-such-run'")


def test_the_page_gets_the_time_at_which_each_line_of_a_run_was_written(demo: Sandbox, served: Served) -> None:
    script = demo.spec(
        'import time\nfor _ in range(3):\n    print("line", flush=True)\n    time.sleep(0.5)\n', "lines.py"
    )
    run = demo("run", "--detach", str(script)).stdout.strip()
    demo("wait", run)
    status, text, _ = served.request(f"/api/logs?tasks={run}&until={time.time()}")
    assert status == 200
    answer = json.loads(text)
    stored = demo.json_lines("logs", run)
    assert answer["lines"] == [{**line, "level": None} for line in stored]
    assert len({line["time"] for line in stored}) == 3
    assert (answer["hidden"], answer["omitted"], answer["problem"], answer["end"]) == (0, 0, None, True)


def test_lines_of_a_log_come_once_each_if_the_page_names_its_position(demo: Sandbox, served: Served) -> None:
    flag = demo.spec("", "more")
    wait = f"while os.path.exists({str(flag)!r}): time.sleep(0.05)"
    script = demo.spec(f"import os, time\nprint('one', flush=True)\n{wait}\nprint('two')", "lines.py")
    run = demo("run", "--detach", script).stdout.strip()
    seen: list[str] = []
    after = ""

    def ask() -> list[str]:
        nonlocal after
        status, text, _ = served.request(f"/api/logs?tasks={run}&after={quote(after)}")
        assert status == 200
        seen.extend(line["line"] for line in json.loads(text)["lines"])
        after = json.loads(text)["after"]
        return seen

    wait_for(lambda: ask() == ["one"])
    flag.unlink()
    demo("wait", run)
    assert ask() == ["one", "two"]
    found = json.loads(served.request(f"/api/logs?tasks={run}&grep=^t")[1])
    assert [line["line"] for line in found["lines"]] == ["two"]
    assert served.request(f"/api/logs?tasks={run}&after=5")[0] == 400
    status, text, _ = served.request("/api/logs?tasks=absent")
    assert status == 400
    assert "absent" in json.loads(text)["message"]


def test_the_page_gets_entries_from_a_level_on_and_how_many_are_hidden(demo: Sandbox, served: Served) -> None:
    assert served.request("/api/logs?level=loud")[0] == 400
    until = time.time()
    status, text, _ = served.request(f"/api/logs?tasks=ps&level=error&until={until}")
    assert status == 200
    stored = demo.json_lines("logs", "ps")
    levels = [entry_level(line["line"]) for line in stored if line["time"] <= until]
    assert json.loads(text)["hidden"] == levels.count(LogLevel.INFO) + levels.count(LogLevel.WARNING) > 0
    assert "Started server" not in text


def test_nothing_is_kept_of_a_run_that_does_not_exist(served: Served) -> None:
    status, text, _ = served.request("/api/runs/no-such-run")
    assert (status, json.loads(text)["message"]) == (404, "no run 'no-such-run'")
    status, text, _ = served.request("/api/view")
    assert status == 200
    assert "no-such-run" not in text


def test_a_view_that_the_page_has_is_not_sent_again(demo: Sandbox, served: Served) -> None:
    status, text, headers = served.request("/api/view")
    view = json.loads(text)
    assert status == 200
    tag = headers["ETag"]
    status, text, later = served.request("/api/view", headers={"If-None-Match": tag})  # waits for another one
    assert status == 200
    assert later["ETag"] != tag
    assert json.loads(text)["time"] > view["time"]
    kinds = {event["event"]: event["kind"] for event in view["events"]}
    assert {name: kinds[name] for name in ("up", "ready", "started")} == {
        "up": "good",
        "ready": "good",
        "started": "plain",
    }
    run = demo("run", "pi", "--samples", "1e4", "-o", "json").stdout.splitlines()[-1]
    path = f"/api/runs/{json.loads(run)['run']}"
    status, text, headers = served.request(path)
    assert json.loads(text)["record"]["state"] == "succeeded"
    status, text, _ = served.request(path, headers={"If-None-Match": headers["ETag"]})
    assert (status, text) == (304, "")


@pytest.mark.slow
def test_connections_without_the_token_cannot_pile_up(served: Served) -> None:
    place = urlsplit(served.base)
    strangers = [socket.create_connection((str(place.hostname), int(place.port or 0))) for _ in range(200)]

    def is_open(stranger: socket.socket) -> bool:
        try:
            return stranger.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True

    wait_for(lambda: sum(map(is_open, strangers)) <= settings.DASHBOARD_STRANGERS_MAX)
    assert served.request("/metrics")[0] == 200
    assert is_open(strangers[-1])
    for stranger in strangers:
        stranger.close()


def test_the_page_loads_nothing_from_elsewhere(served: Served) -> None:
    status, text, headers = served.request("/", headers={"Authorization": None})
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'self'; frame-ancestors 'none'")
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert loaded
    for path in loaded:
        assert served.request(path, headers={"Authorization": None})[0] == 200, path


def test_metrics_are_those_of_the_command(demo: Sandbox, served: Served) -> None:
    def families(text: str) -> set[str]:
        return {family.name for family in text_string_to_metric_families(text)}

    assert families(served.request("/metrics")[1]) == families(demo("metrics").stdout)


@pytest.mark.slow
def test_a_workers_death_and_an_agents_death(demo: Sandbox, served: Served, browser: Browser) -> None:
    browser.open(served.at(""))
    wait_for(lambda: "ready" in browser.text("[data-task='worker:1']"))
    assert "token" not in browser.chrome.current_url, "it is not kept in the history"
    worker = demo.task("worker:1")
    os.kill(worker["pid"], signal.SIGKILL)
    wait_for(lambda: browser.text("[data-task='worker:1'] .restarts") == str(worker["restarts"] + 1))
    wait_for(lambda: "SIGKILL" in browser.text("[data-task='worker:1'] .last-exit"))
    wait_for(lambda: browser.text("[data-task='worker:1'] .state") == "ready")
    killed = demo.kill_agent()
    wait_for(lambda: re.search(rf"agent (?!{killed}\b)\d+", browser.text("#hosts")))
    wait_for(lambda: browser.text("#cluster-state") == "running")
    assert is_live(browser)
    browser.run("location.hash = 'events'")
    wait_for(lambda: "SIGKILL" in browser.text("#events"))
    assert browser.complaints() == []


def test_the_curve_and_the_log_of_a_training(served: Served, browser: Browser, training: str) -> None:
    browser.open(served.at(f"&run={training}"))
    browser.click("[data-metric=loss] summary")
    wait_for(lambda: points(browser) >= 3)
    drawn = points(browser)
    wait_for(lambda: points(browser) > drawn)
    wait_for(lambda: "step 5" in browser.text(".log"))
    seen = browser.text(".log").count("step")
    wait_for(lambda: browser.text(".log").count("step") > seen)
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_cancel_is_asked_for_again(demo: Sandbox, served: Served, browser: Browser, training: str) -> None:
    browser.open(served.at(""))
    cancel = f"[data-run='{training}'] .cancel"
    browser.click(cancel)
    wait_for(lambda: f"tfcluster cancel {training} -c demo" in browser.text("dialog"))
    refuse(browser)
    wait_for(lambda: demo.json("runs", training)["state"] == "running")  # it was queued, or runs on
    browser.click(cancel)
    browser.click("#confirm")
    wait_for(lambda: "cancelled" in browser.text(f"[data-run='{training}'] .state"))
    assert demo.json("runs", training)["state"] == "cancelled"


@pytest.mark.slow
def test_a_restart_says_what_is_lost(demo: Sandbox, served: Served, browser: Browser) -> None:
    pid = demo.task("ps:0")["pid"]
    browser.open(served.at(""))
    browser.click("[data-task='ps:0'] .restart")
    wait_for(lambda: "the variables of ps:0" in browser.text("dialog"))
    assert "tfcluster restart ps:0 --yes -c demo" in browser.text("dialog")
    refuse(browser)
    assert demo.task("ps:0")["pid"] == pid
    browser.click("[data-task='ps:0'] .restart")
    browser.click("#confirm")
    wait_for(lambda: demo.task("ps:0", code=None)["pid"] not in (pid, None))
    demo.wait_until("running")


def test_the_page_gets_the_placed_graph_of_a_run(demo: Sandbox, served: Served) -> None:
    run = demo.json("run", "graph", "--device", "y2=/job:ps/task:0", "--log-placement")["run"]
    assert json.loads(served.request(f"/api/runs/{run}")[1])["has_graph"]
    text = json.loads(served.request(f"/api/runs/{run}/graph")[1])["dot"]
    assert text.startswith(f'digraph "{run}" {{')
    assert 'label="/job:ps/task:0/device:CPU:0"' in text
    assert 'label="y2\\nSub"' in text


def test_the_browser_is_given_no_token_that_others_can_read(demo: Sandbox) -> None:
    """The arguments of a process can be read by every account, and its files only by this one."""
    asked = demo.folder / "asked"
    script = demo.spec(f'#!/bin/sh\necho "$1" > {asked}.new && mv {asked}.new {asked}\n', "browser")
    script.chmod(0o700)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a command under nohup would inherit that it is ignored
    process = demo.start("dashboard", "-o", "json", env={"BROWSER": f"{script} %s"})
    signal.signal(signal.SIGHUP, before)
    url = json.loads(process.stdout.readline())["url"]
    wait_for(asked.exists)
    given = urlsplit(asked.read_text().strip())
    assert given.scheme == "file"
    assert f'content="0;url={url}"' in Path(given.path).read_text()
    assert os.stat(given.path).st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGHUP)  # the terminal was closed
    assert process.wait() == 143
    assert not Path(given.path).exists()
