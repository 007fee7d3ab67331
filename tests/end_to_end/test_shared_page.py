"""`tfcluster dashboard --share`: what readers get, and what is refused, whatever they send."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.accounts import Account, account
from tests.conftest import SCRIPTS, Sandbox, running, wait_for
from tests.hosts import ssh_hosts
from tests.recorded_page import RecordedApi
from tests.served_page import Served, serve_page
from tfcluster.dashboard.api import RequestError, Route
from tfcluster.dashboard.reader import Reader
from tfcluster.errors import ClusterError

NOW = 1769860800.0
READ_ONLY = "this link is read-only: only the owner of the cluster can do that"
NO_LOGS = "It shows no logs, and not why a run failed: what a program prints can contain its environment variables."
# Each request that the server answers, and what a reader gets.
READERS: dict[Route, tuple[int, str]] = {
    Route.VIEW: (200, '"cluster": "demo"'),
    Route.SAMPLES: (200, "["),
    Route.RUN: (200, '"series"'),
    Route.GRAPH: (403, READ_ONLY),
    Route.LOGS: (403, NO_LOGS),
    Route.METRICS: (403, READ_ONLY),
    Route.CANCEL: (403, READ_ONLY),
    Route.RESTART: (403, READ_ONLY),
}
SEARCH, USE = ((SCRIPTS / name).read_text() for name in ("search_processes.py", "use_page.py"))
# Shows a variable of its environment in all ways in which a program says something without meaning to publish it.
LEAKING = """
import os, tfcluster
print("TOKEN is", os.environ["TOKEN"], flush=True)
tfcluster.metric("loss", 0.5, 1)
raise ValueError(os.environ["TOKEN"])
"""


@dataclass
class Shared:
    """A page that is shared: as its owner gets it, and as readers do."""

    owner: Served
    reader: Served


@pytest.fixture(scope="module")
def shared(demo: Sandbox) -> Iterator[Shared]:
    """The page of the example cluster, shared."""
    with serve_page(demo, "--share") as links:
        assert [*links] == ["url", "share"]
        owner = Served.of(links["url"])
        wait_for(lambda: owner.request("/api/view")[0] == HTTPStatus.OK)
        yield Shared(owner, Served.of(links["share"]))


@pytest.fixture(scope="module")
def training(demo: Sandbox) -> Iterator[str]:
    """A run that reports until the tests of this module end, none of which can cancel it."""
    flag = demo.spec("", "training")
    run = demo("run", "--detach", SCRIPTS / "report_loss.py", flag).stdout.strip()
    wait_for(lambda: demo.json("runs", run)["state"] == "running")
    yield run
    flag.unlink()
    demo("wait", run)


@pytest.fixture(scope="module")
def leak(demo: Sandbox) -> tuple[str, str]:
    """A run that has printed a variable of the shell that started it, and the variable's value."""
    secret = uuid.uuid4().hex
    run = demo("run", "--detach", demo.spec(LEAKING, "leak.py"), env={"TOKEN": secret}).stdout.strip()
    demo("wait", run, code=1)
    return run, secret


@pytest.fixture
def stranger(needs_root: None) -> Iterator[Account]:
    with account("tfc-x") as made:
        yield made


def path_of(route: Route, run: str) -> tuple[str, str]:
    """Return the method and the path of a request about a run."""
    method, path = route.value.split()
    return method, path.replace("RUN", run)


def ask(page: Served, route: Route, run: str) -> tuple[int, str]:
    """Return the status and the text of the answer to a request about a run, or about no task."""
    method, path = path_of(route, run)
    body = None if method == "GET" else json.dumps({"run": "no-such-run", "task": "no-such-task"}).encode()
    return page.request(path, method, body)[:2]


def test_each_request_is_for_readers_or_is_not(shared: Shared, training: str) -> None:
    assert {*READERS} == {*Route}, "a new request has to be listed"
    wait_for(lambda: training in shared.reader.request("/api/view")[1])
    for route, (status, text) in READERS.items():
        answer = ask(shared.reader, route, training)
        assert (answer[0], text in answer[1]) == (status, True), (route, answer)
        assert ask(shared.owner, route, training)[0] in (200, 400), f"{route}: the owner may"


ACTIONS = (
    *("/api/cancel", "/api/restart", "//api/cancel", "/api//cancel", "/api/cancel/", "/API/CANCEL", "/api/cancel;a"),
    *("/api/%63ancel", "/api/cancel%00", "/api/view/../cancel", "/api/runs/../cancel", "/api/runs/%2e%2e/cancel"),
    *("http://127.0.0.1/api/cancel", "/api/cancel?token={token}", "/api/view", "/api/runs/{run}", "/", "*"),
)
LOGS = (
    *("/api/logs", "//api/logs", "/api/logs/", "/API/LOGS", "/api/%6cogs", "/api//logs", "/api/logs?tasks=worker"),
    *("/api/logs?after=5", "http://127.0.0.1/api/logs", "/api/runs/{run}/logs", "/api/runs/../logs", "/api/runs/"),
    *("/api/runs/{run}/graph", "/metrics?", "/nothing", "/../__init__.py", "/api/cancel", "/api/view/logs"),
)


def test_no_path_leads_a_reader_to_an_action(demo: Sandbox, shared: Shared, training: str) -> None:
    body = json.dumps({"run": training, "task": "worker:0", "accepted": []}).encode()
    for path in ACTIONS:
        for sent in (body, b"", None):
            answer = shared.reader.request(path.format(token=shared.owner.token, run=training), "POST", sent)
            assert (answer[0], json.loads(answer[1])) == (403, {"message": READ_ONLY}), path
    assert demo.json("runs", training)["state"] == "running"


def test_no_path_leads_a_reader_to_a_log(shared: Shared, training: str, leak: tuple[str, str]) -> None:
    for path in LOGS:
        assert shared.reader.request(path.format(run=training))[0] == 403, path
    for path in ("/api/runs/{run}%2flogs", "/api/runs/.."):
        assert shared.reader.request(path.format(run=training))[0] == 404, path
    for path in (*LOGS, "/api/view?tasks={run}", "/api/samples?tasks={run}", "/api/runs/{run}?tasks={run}"):
        text = shared.reader.request(path.format(run=leak[0]))[1]
        assert leak[1] not in text, path


def test_other_methods_are_not_known(demo: Sandbox, shared: Shared, training: str) -> None:
    for method in ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "post"):
        for path in ("/api/cancel", "/api/logs", "/api/view"):
            status, text, _ = shared.reader.request(path, method, json.dumps({"run": training}).encode())
            assert (status, training in text) == (501, False), (method, path)
    overriding = {"X-HTTP-Method-Override": "POST", "X-Original-URL": "/api/cancel"}
    assert shared.reader.request("/api/cancel", headers=overriding)[0] == 403
    assert demo.json("runs", training)["state"] == "running"


def test_only_the_two_tokens_are_known(shared: Shared) -> None:
    owner, reader = shared.owner.token, shared.reader.token
    assert owner != reader
    wrong = ["", "wrong", reader[:-1], owner[:-1], reader + owner, f"{reader},{owner}", reader.swapcase(), f" {reader}"]
    for token in wrong:
        assert replace(shared.reader, token=token).request("/api/view")[0] == 401, token
    for name, value in {"Cookie": f"token={owner}", "X-Token": owner, "Authorization": f"Basic {owner}"}.items():
        assert shared.reader.request("/api/view", headers={"Authorization": None, name: value})[0] == 401, name
    for name in ("token", "Authorization"):
        assert shared.reader.request(f"/api/view?{name}={owner}", headers={"Authorization": None})[0] == 401
    assert shared.reader.request(f"/api/cancel?token={owner}", "POST", b"{}")[0] == 403


def test_a_request_that_is_refused_hides_none_in_its_body(demo: Sandbox, shared: Shared, training: str) -> None:
    """The body of what is refused is not read; it must not be taken for the next request."""
    place = urlsplit(shared.reader.base)
    body = json.dumps({"run": training}).encode()
    hidden = (
        f"POST /api/cancel HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {shared.reader.token}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with socket.create_connection((str(place.hostname), int(place.port or 0)), 60) as connection:
        connection.sendall(2 * hidden)
        received = b""
        with contextlib.suppress(ConnectionResetError):  # the server may close before it has read all
            while part := connection.recv(65536):
                received += part
    assert received.count(b"HTTP/1.1 403") == received.count(b"HTTP/1.1") == 1
    assert demo.json("runs", training)["state"] == "running"


def test_a_reader_is_not_told_what_programs_print(shared: Shared, leak: tuple[str, str]) -> None:
    """The specification has no `env`: a script has the variables of the shell that has started it."""
    run, secret = leak

    def answers(page: Served) -> dict[Route, str]:
        found = {route: ask(page, route, run)[1] for route in Route}
        return {**found, Route.LOGS: page.request(f"/api/logs?tasks={run}")[1]}

    wait_for(lambda: secret in ask(shared.owner, Route.VIEW, run)[1])
    own = answers(shared.owner)
    assert [route for route in Route if secret in own[route]] == [Route.VIEW, Route.RUN, Route.LOGS]
    shown = answers(shared.reader)
    assert [route for route in Route if secret in shown[route]] == []
    record = json.loads(shown[Route.RUN])["record"]
    assert (record["state"], record["result"]["exit_code"], record["error"]) == ("failed", 1, None)
    assert record["result"]["metrics"] == {"loss": 0.5}
    (summary,) = [each for each in json.loads(shown[Route.VIEW])["runs"] if each["run"] == run]
    assert (summary["state"], summary["outcome"], summary["metrics"]) == ("failed", "", {"loss": 0.5})


def test_a_view_that_a_reader_has_is_not_sent_again(shared: Shared) -> None:
    status, text, headers = shared.reader.request("/api/view")
    assert status == 200
    status, later, other = shared.reader.request("/api/view", headers={"If-None-Match": headers["ETag"]})
    assert status == 200
    assert other["ETag"] != headers["ETag"]
    assert json.loads(later)["time"] > json.loads(text)["time"]


TRIAL = {"trial", "parameters", "state", "metrics", "host", "seconds"}


class _TalkativeApi(RecordedApi):
    """Has more in each object than readers get: `secret` in all fields that are not for them."""

    def view(self) -> dict[str, Any]:
        view = super().view()
        return add_secrets(
            {
                **view,
                "status": {
                    **add_secrets(view["status"]),
                    "hosts": [add_secrets(host) for host in view["status"]["hosts"]],
                    "tasks": [add_secrets(hide_exit(task)) for task in view["status"]["tasks"]],
                    "runs": [add_secrets(run) for run in view["status"]["runs"]],
                },
                "problems": {"node7": "Permission denied: secret"},
                "runs": [self._add(run) for run in view["runs"]],
                "events": [add_secrets({**event, "detail": "secret"}) for event in view["events"]],
            }
        )

    def _run(self, run: str) -> dict[str, Any]:
        answer = super()._run(run)
        members = [add_secrets({"task": "worker:0", "host": "node0", "state": "exited", "attempt": 1, "exit_code": 1})]
        trials = [add_secrets(dict.fromkeys(TRIAL, 0))]
        return {
            **add_secrets(answer),
            **{"record": self._add(answer["record"]), "members": members, "trials": trials},
            **{"notes": ["secret"], "has_graph": True},
        }

    def _add(self, record: dict[str, Any]) -> dict[str, Any]:
        origin = add_secrets({"commit": "abc", "is_clean": True})
        error = {"message": "secret", "hint": "secret"} if record["error"] else None
        parameters = {**record["parameters"], **({"cwd": "secret"} if record["program"] == "script" else {})}
        waits = "waits: secret" if record["state"] == "running" else ""
        outcome = "secret" if error else record["outcome"]
        return add_secrets(
            {**record, "origin": origin, "error": error, "parameters": parameters}
            | {"activity": waits, "outcome": outcome}
        )


def add_secrets(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with more, whose names no test has foreseen."""
    return {**values, "log": ["secret"], "env": {"TOKEN": "secret"}, "new": "secret"}


def hide_exit(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task with the end of its log, and with what an agent knows of its exit."""
    return {**task, "last_exit": task["last_exit"] and add_secrets({**task["last_exit"], "detail": "secret"})}


def test_readers_get_no_field_that_is_not_for_them() -> None:
    """tests/golden/page-of-readers.json has those that are."""
    reader, known = Reader(_TalkativeApi(now=NOW)), Reader(RecordedApi(now=NOW))
    view, expected = (json.loads(each.answer("GET", "/api/view", {}, {}).data) for each in (reader, known))
    runs = [{**run, "origin": {"commit": "abc", "is_clean": True}} for run in expected["runs"]]
    assert view == {**expected, "runs": runs, "problems": {"node7": "it cannot be reached"}}
    for run in ("linear-0061", "train-005e", "mean-005f"):
        answer, plain = (each.answer("GET", f"/api/runs/{run}", {}, {}) for each in (reader, known))
        assert "secret" not in json.dumps(answer), run
        own = {"record": answer["record"], "members": answer["members"], "trials": [dict.fromkeys(TRIAL, 0)]}
        assert answer == {**plain, **own}, run
        assert answer["record"] == {**plain["record"], "origin": {"commit": "abc", "is_clean": True}}


class _DownApi(RecordedApi):
    """Says why its cluster is down, and would start agents to look for a run."""

    def view(self) -> dict[str, Any]:
        return {**super().view(), "problems": {"": "down: secret"}}

    def _run(self, run: str) -> dict[str, Any]:
        raise AssertionError("asked for a run")


@pytest.mark.parametrize(("api", "run"), [(_DownApi, "linear-0061"), (RecordedApi, "unknown-0000")])
def test_a_reader_has_no_run_looked_for_that_the_page_does_not_show(api: type[RecordedApi], run: str) -> None:
    reader = Reader(api())
    with pytest.raises(RequestError, match=f"no run {run} is shown") as error:
        reader.answer("GET", f"/api/runs/{run}", {}, {})
    assert error.value.status == HTTPStatus.NOT_FOUND
    problems = json.loads(reader.answer("GET", "/api/view", {}, {}).data)["problems"]
    assert problems == ({"": "the cluster is down"} if api is _DownApi else problems)


class _AwayApi(RecordedApi):
    """Cannot reach its cluster, and quotes why."""

    def answer(self, *request: Any, **more: Any) -> Any:
        raise ClusterError("ssh: Permission denied (secret)")


def test_readers_are_not_told_why_a_host_does_not_answer() -> None:
    with pytest.raises(RequestError) as refused:
        Reader(_AwayApi()).answer("GET", "/api/runs/linear-0061", {}, {})
    assert (refused.value.status, str(refused.value)) == (HTTPStatus.BAD_GATEWAY, "the cluster does not answer")


def test_another_account_reads_with_the_link_and_finds_no_token(
    demo: Sandbox, stranger: Account, training: str
) -> None:
    """The owner's browser gets the link by a file, and processes have no token in their arguments."""
    asked, flag = demo.folder / "asked", demo.spec("", "browsing")
    stay = f"while [ -e {flag} ]; do sleep 0.1; done"
    script = demo.spec(f'#!/bin/sh\necho "$1" > {asked}.new && mv {asked}.new {asked}\n{stay}\n', "browser")
    script.chmod(0o700)
    process = demo.start("dashboard", "--share", "-o", "json", env={"BROWSER": f"{script} %s &"})
    links = json.loads(process.stdout.readline())
    owner, reader = Served.of(links["url"]), Served.of(links["share"])
    wait_for(asked.exists)

    def run(source: str, *arguments: str) -> str:
        command = stranger.command(sys.executable, "-c", source, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    found = run(SEARCH)
    assert Path(urlsplit(asked.read_text().strip()).path).name in found, "the argument of the browser is seen"
    assert owner.token not in found
    assert reader.token not in found
    answers = json.loads(run(USE, reader.base, reader.token, training))
    assert [status for status, _ in answers] == [200, 403, 403]
    assert training in answers[0][1]
    assert [status for status, _ in json.loads(run(USE, reader.base, "guessed", training))] == [401, 401, 401]
    assert demo.json("runs", training)["state"] == "running"
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    flag.unlink()
    wait_for(lambda: not demo.pids("dashboard.html"))


def test_ctrl_c_ends_both_links_and_the_next_start_has_others(demo: Sandbox, training: str) -> None:
    seen = set[str]()
    for _ in range(2):
        process = demo.start("dashboard", "--share", "--no-browser", training)
        first, second = process.stdout.readline(), process.stdout.readline()
        tokens = re.findall(r"#token=([\w-]{40,})&run=" + training, first + second)
        assert re.fullmatch(r"demo: http://127\.0\.0\.1:\d+/#\S+ \(Ctrl-C stops it\)\n", first)
        assert re.fullmatch(r"for readers: http://127\.0\.0\.1:\d+/#\S+\n", second)
        seen |= {*tokens}
        place = urlsplit(second.split()[-1])
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        with pytest.raises(ConnectionRefusedError):
            http.client.HTTPConnection(str(place.hostname), place.port, timeout=60).request("GET", "/")
    assert len(seen) == 4


@pytest.mark.needs("sshd")
def test_a_reader_forwards_the_port_by_ssh(tmp_path: Path) -> None:
    """The page is asked for by another port than its own, and by another name."""
    with ssh_hosts("box") as hosts:
        enter, ssh = (str(hosts.folder / "bin" / name) for name in ("box.enter", "ssh"))
        box = Sandbox(tmp_path, mark=hosts.mark, command=(enter, sys.executable, "-m", "tfcluster"))
        box("up", box.spec("{name: demo, jobs: {worker: {tasks: 1}}}"))
        process = box.start("dashboard", "--share", "--no-browser", "-o", "json")
        reader = Served.of(json.loads(process.stdout.readline())["share"])
        forward = f"8080:127.0.0.1:{urlsplit(reader.base).port}"
        with running(ssh, "-N", "-L", forward, "box", env={**os.environ, **hosts.environment}) as forwarding:
            command = hosts.command(sys.executable, "-c", USE, "http://localhost:8080", reader.token, "no-run")

            def use() -> str:
                return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120).stdout

            answers = json.loads(wait_for(use))
            assert forwarding.poll() is None
        assert [status for status, _ in answers] == [200, 403, 403]
        assert json.loads(answers[0][1])["status"]["cluster"] == "demo"
        process.terminate()
        process.communicate(timeout=60)
        box("down")
