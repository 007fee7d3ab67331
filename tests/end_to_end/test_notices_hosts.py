"""A host that goes away, over real links: the leading host tells it once; of the leading host, the next one does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import running, wait_for
from tests.end_to_end.test_ssh import Over, over
from tests.hosts import HERE

# A webhook that writes each notice to a file.
_WEBHOOK = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        with open(sys.argv[2], "ab") as file:
            file.write(self.rfile.read(int(self.headers["Content-Length"])) + b"\\n")
        self.send_response(204)
        self.end_headers()

server = HTTPServer((sys.argv[1], 8080), Handler)
print("ready", flush=True)
server.serve_forever()
"""
_NAMES = ("alpha", "beta", "gamma")


def notices(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reported(sandbox: Over, host: str) -> list[str]:
    """Return what the agent of a host has reported and not discarded since."""
    [path] = sandbox.network.folder.glob(f"{host}/state/tfcluster/*/*/notices.json")
    return list(json.loads(path.read_text())["reported"])


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_a_host_that_goes_away_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"HOST_AWAY_SECONDS": 8.0, "NOTICE_SECONDS": 10.0, "NOTICE_BACKOFF_SECONDS": [600.0]}
    monkeypatch.setenv("TEST_SETTINGS", json.dumps(changed))
    with over(tmp_path, *_NAMES) as sandbox:
        address, received = sandbox.network.address(HERE), tmp_path / "received"
        server = sandbox.network.command(sys.executable, "-c", _WEBHOOK, address, str(received))
        jobs = (
            "jobs: {worker: {tasks: 3, hosts: [alpha, beta, gamma]}}\n"
            f"notify: {{webhook: 'http://{address}:8080/', command: cat >> $HOME/told}}\n"
        )
        with running(*server, stdout=subprocess.PIPE) as webhook:
            assert webhook.stdout.readline() == "ready\n"
            sandbox("up", sandbox.spec(sandbox.text(_NAMES, jobs)))
            told = {host: sandbox.network.home(host) / "told" for host in _NAMES}
            with sandbox.without("link", "gamma"):
                wait_for(lambda: notices(received) and notices(told["alpha"]))
            sandbox.wait_until("running")
            for path in (received, told["alpha"]):
                [notice] = notices(path)
                assert (notice["event"], notice["host"]) == ("host-away", "gamma")
                assert notice["text"] == "wide: host gamma has not answered for 8 s"
            assert not told["beta"].exists()
            assert not told["gamma"].exists()
            # It is told again when it goes away again, once alpha has seen that it was back.
            wait_for(lambda: reported(sandbox, "alpha") == [])
            with sandbox.without("link", "gamma"):
                wait_for(lambda: len(notices(received)) == 2)
            assert len({each["id"] for each in notices(received)}) == 2
            wait_for(lambda: sandbox("status", code=None).returncode == 0)
            with sandbox.without("link", "alpha"):
                # The next host says that the leading one is away; and from where that is, both others are.
                wait_for(lambda: [each["host"] for each in notices(told["beta"])] == ["alpha"])
                wait_for(lambda: {each["host"] for each in notices(told["alpha"])} == {"beta", "gamma"})
                wait_for(lambda: len(notices(received)) == 3)
            assert notices(received)[-1]["host"] == "alpha"
            assert not told["gamma"].exists()
            wait_for(lambda: sandbox("status", code=None).returncode == 0)
            sandbox("down")
