"""Runs on hosts whose state is elsewhere than the environment of their processes says, over real sshds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.clusters import Hosts
from tests.conftest import wait_for
from tests.end_to_end.test_reboot import run_as_cron
from tests.hosts import HostsSandbox, over
from tests.strikes import reboot

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  worker: {tasks: 2, hosts: [alpha, beta]}\n"
#: What the fork server, and with it the drivers, find in their environment, on both hosts.
ELSEWHERE = {"tfcluster.processes.runs.fork_server": "os.environ['XDG_STATE_HOME'] = '/nowhere'"}


HOSTS = Hosts(
    NAMES,
    JOBS,
    keys={"alpha": {"state": "{home}/scratch"}},
    changes=ELSEWHERE,
    files={"beside.py": "TEXT = 'done'\n", "script.py": "import beside\nprint(beside.TEXT)\n"},
)


def test_a_run_has_its_folders_from_the_agent(hosts: HostsSandbox) -> None:
    assert hosts("run", "script.py").stdout == "done\n"
    assert hosts("launch", "script.py").stdout.count("done") == 2  # on each host
    assert not any((hosts.network.home("alpha") / "state").iterdir())


def test_python_and_state_in_the_home_folder(needs_network: None, tmp_path: Path) -> None:
    with over(tmp_path, "alpha", has_sshd=False) as sandbox:
        home = sandbox.network.home("alpha")
        (home / "its own").mkdir()
        (home / "its own" / "python").write_text(f'#!/bin/sh\ntouch ~/started\nexec {sys.executable} "$@"\n')
        (home / "its own" / "python").chmod(0o755)
        text = sandbox.text(("alpha",), "jobs: {worker: {tasks: 1}}\n", {"alpha": Path("~/its own/python")})
        spec = sandbox.spec(text.replace("alpha: {", "alpha: {state: ~/kept there, "))
        sandbox("up", spec)
        assert (home / "started").exists()
        assert (home / "kept there" / "wide" / "alpha" / "lock").exists()
        assert not any((home / "state").iterdir())
        (unit,) = sandbox.json("doctor", spec, "--print-systemd")
        reboot(sandbox, home / "run")
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "TEST_MARK": sandbox.network.mark}
        run_as_cron(sandbox.network.network["alpha"].command(), unit["cron"], environment)
        sandbox.wait_until("running")
        sandbox("down")
        wait_for(lambda: not sandbox.network.leftovers())
