"""Runs on hosts whose state is elsewhere than the environment of their processes says, over real sshds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.end_to_end.test_reboot import reboot, run_as_cron
from tests.end_to_end.test_ssh import Over, over

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  worker: {tasks: 2, hosts: [alpha, beta]}\n"
#: What the fork server, and with it the drivers, find in their environment, on both hosts.
ELSEWHERE = {"tfcluster.processes.runs.fork_server": "os.environ['XDG_STATE_HOME'] = '/nowhere'"}


@pytest.fixture(scope="module")
def wide(needs_sshd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """A cluster on two hosts, the first with `state:`; the state of both is where their agents have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_CHANGES", json.dumps(ELSEWHERE))
        with over(tmp_path_factory.mktemp("wide"), *NAMES) as sandbox:
            state = f"state: {sandbox.network.home('alpha') / 'scratch'}"
            text = sandbox.text(NAMES, JOBS).replace("alpha: {", f"alpha: {{{state}, ")
            sandbox("up", sandbox.spec(text))
            (sandbox.folder / "beside.py").write_text("TEXT = 'done'\n")
            (sandbox.folder / "script.py").write_text("import beside\nprint(beside.TEXT)\n")
            yield sandbox


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        *(
            pytest.param(words, 1, marks=pytest.mark.slow)
            for words in ("run pi --samples 1e5", "run script --cold script.py", "run -m script")
        ),
        ("run script.py", 1),
        pytest.param("launch script.py", 2, marks=pytest.mark.slow),  # on each host
    ],
)
def test_a_run_has_its_folders_from_the_agent(wide: Over, words: str, lines: int) -> None:
    output = wide(*words.split()).stdout
    assert output.count("done" if "script" in words else "random points") == lines
    assert not any((wide.network.home("alpha") / "state").iterdir())


@pytest.mark.parametrize(
    "has_sshd",
    [
        pytest.param(False, marks=pytest.mark.needs("network"), id="connect"),
        pytest.param(True, marks=[pytest.mark.slow, pytest.mark.needs("sshd")], id="ssh"),
    ],
)
def test_python_and_state_in_the_home_folder(tmp_path: Path, has_sshd: bool) -> None:
    with over(tmp_path, "alpha", has_sshd=has_sshd) as sandbox:
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
