"""Over real sshds: the link of the leading host is lost, and the other hosts do what they can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.test_ssh import over

pytestmark = pytest.mark.slow

HOSTS = ("alpha", "beta", "gamma")
JOBS = (
    "jobs:\n  chief: {tasks: 1, hosts: [alpha]}\n  ps: {tasks: 1, hosts: [beta]}\n"
    "  worker: {tasks: 2, max: 4, hosts: [beta, gamma]}\n"
)
WORKERS = [f"/job:worker/task:{index}/device:CPU:0" for index in range(2)]


@pytest.mark.needs("sshd")
def test_the_link_of_the_leading_host_is_lost(tmp_path: Path) -> None:
    with over(tmp_path, *HOSTS) as sandbox:
        sandbox("up", sandbox.spec(sandbox.text(HOSTS, JOBS)))
        with sandbox.without("link", "alpha"):
            shown = sandbox("run", "pi", "--samples", "1e8", "-o", "json")
            result = json.loads(shown.stdout.splitlines()[-1])
            assert sorted(result["devices"]) == WORKERS
            assert "host 'beta' leads the run" in shown.stderr
            assert "chief:0 at " in result["notes"][0]
            assert " on alpha does not answer: running without it" in result["notes"][0]
            listed = sandbox("runs", "-o", "json", code=5)
            assert [run["run"] for run in json.loads(listed.stdout)] == [result["run"]]
            assert "host 'alpha' cannot be reached" in listed.stderr
            script = tmp_path / "hello.py"
            script.write_text("import os\nprint(os.environ['TFCLUSTER_MASTER'])\n")
            master = sandbox("run", script).stdout.strip()
            assert master.startswith(f"grpc://{sandbox.network.address('beta')}:"), "a task that is there"
            assert "is up: 1 task started" in sandbox("scale", "worker=3").stdout
        sandbox("scale", "worker=3")
        assert [task["state"] for task in sandbox.status()["tasks"]] == ["ready"] * 5
