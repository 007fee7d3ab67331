"""Notices: a webhook or a command gets what happens, again if it fails, and nothing waits for it."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Sandbox, lines_of, wait_for
from tests.hosts import over

TOKEN = "s3cr3t-t0k3n"


@dataclass
class Webhook:
    """A web server that refuses the first requests."""

    url: str = ""  # with a token
    refusals: int = 0  # how many requests it refuses from now on
    #: Each notice, with whether it was accepted.
    requests: queue.Queue[tuple[bool, dict[str, Any]]] = field(default_factory=queue.Queue)

    def get(self) -> tuple[bool, dict[str, Any]]:
        return self.requests.get(timeout=120)


@contextmanager
def webhook() -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notice = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            is_accepted = hook.refusals == 0 and self.path == f"/{TOKEN}"
            hook.refusals = max(0, hook.refusals - 1)
            self.send_response(204 if is_accepted else 503)
            self.end_headers()
            hook.requests.put((is_accepted, {**notice, "type": self.headers["Content-Type"]}))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/{TOKEN}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()


def up(sandbox: Sandbox, notify: str) -> None:
    spec = f"name: told\njobs:\n  worker: {{tasks: 1}}\nrestart: {{policy: never}}\nnotify: {notify}\n"
    sandbox("up", sandbox.spec(spec), env=sandbox.with_settings({"NOTICE_RETRY_SECONDS": [0.1, 0.1]}))


def fail(sandbox: Sandbox) -> None:
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGKILL)
    sandbox.wait_until("failed")


def is_logged(sandbox: Sandbox, text: str) -> None:
    wait_for(lambda: text in sandbox("logs", "--agent", "-c", "told").stdout)


@pytest.mark.slow
def test_a_webhook_that_fails_is_told_again_and_what_an_earlier_agent_has_told_is_not(sandbox: Sandbox) -> None:
    with webhook() as hook:
        hook.refusals = 2
        up(sandbox, f"{{webhook: {hook.url}, events: [task-failed]}}")
        fail(sandbox)
        (first, notice), (second, _) = hook.get(), hook.get()
        assert (first, second) == (False, False)
        assert hook.get() == (True, notice)
        assert notice["type"] == "application/json"
        assert {key: notice[key] for key in ("event", "cluster", "host", "task", "text")} == {
            "event": "task-failed",
            "cluster": "told",
            "host": "localhost",
            "task": "worker:0",
            "text": "told: worker:0 died (SIGKILL) and has failed",
        }
        is_logged(sandbox, "retrying in 0.1 s: HTTP status 503")
        is_logged(sandbox, "notified the webhook: told: worker:0 died")
        # A task that has failed is told once, whatever agents follow.
        sandbox.kill_agent()
        sandbox("restart", "worker:0")
        fail(sandbox)
        assert hook.get()[1]["id"] != notice["id"]
        assert hook.requests.empty()
    shown = [sandbox("validate", "-o", "json").stdout, sandbox("logs", "--agent").stdout]
    journals = [path.read_text() for path in sandbox.folder.glob("state/tfcluster/told/*/journal.json*")]
    assert journals
    assert not any(TOKEN in text for text in [*shown, *journals])


def test_runs_that_end_are_told(sandbox: Sandbox) -> None:
    folder = sandbox.folder
    script = sandbox.spec("import sys\nsys.exit(int(sys.argv[1]))\n", "ends.py")
    (folder / "note.sh").write_text(
        'cat > "$1.json"\necho "$TFCLUSTER_RUN $TFCLUSTER_NOTICE_STATE $TFCLUSTER_NOTICE_EXIT_CODE" > "$1.txt"\n'
    )

    def result_of(name: str) -> tuple[str, dict[str, Any]]:
        path = Path(folder / f"{name}.txt")
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
        return path.read_text().strip(), json.loads((folder / f"{name}.json").read_text())

    with webhook() as hook:
        up(sandbox, f"{{webhook: {{secret: '{hook.url}'}}}}")
        output = sandbox("run", "-o", "json", "--notify", f"sh note.sh {folder}/here", script, "7", code=7).stdout
        run = json.loads(output.splitlines()[-1])["run"]
        words, notice = result_of("here")
        assert words == f"{run} failed 7"
        is_accepted, posted = hook.get()
        assert is_accepted
        for each in (notice, posted):
            assert (each["event"], each["run"], each["state"]) == ("run-finished", run, "failed")
            assert each["result"] == {"exit_code": 7}
            assert each["text"].startswith(f"told: {run} failed after ")
        run = sandbox("run", "--detach", "--notify", f"sh {folder}/note.sh {folder}/there", script, "0").stdout.strip()
        words, notice = result_of("there")
        assert words == f"{run} succeeded 0"
        assert hook.get()[1]["id"] == notice["id"] == f"told-{run}-finished"
        error = sandbox("run", "--notify", "echo oh; exit 4", script, "0").stderr
        assert error.endswith("oh\nthe command of --notify ended with exit code 4\n")
        assert hook.get()[0]


@pytest.mark.slow
@pytest.mark.needs("network")
def test_a_host_that_goes_away_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the host of the head task. The other one, which does not reach that host any more either, tells of nothing."""
    monkeypatch.setenv("TEST_SETTINGS", json.dumps({"HOST_AWAY_SECONDS": 6.0}))
    names = ("alpha", "beta")
    with over(tmp_path, *names, has_sshd=False) as sandbox:
        jobs = "jobs: {worker: {tasks: 2, hosts: [alpha, beta]}}\nnotify: {command: cat >> $HOME/told}\n"
        sandbox("up", sandbox.spec(sandbox.text(names, jobs)))
        alpha, beta = (sandbox.network.home(host) / "told" for host in names)
        with sandbox.without("link", "beta"):
            wait_for(alpha.exists)
        wait_for(lambda: "host beta answers again" in sandbox("logs", "--agent", code=None).stdout)
        (notice,) = lines_of(alpha.read_text())
        assert (notice["event"], notice["host"]) == ("host-away", "beta")
        assert notice["text"].startswith("wide: host beta has not answered for 6 s (")
        assert not beta.exists()
        sandbox("down")
