"""What brings a cluster up again after a reboot, without systemd: its command, after all that a reboot takes away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import Sandbox, wait_for
from tests.descriptors import held_by
from tests.hosts import over
from tests.strikes import reboot
from tfcluster.paths import PACKAGE_ROOT


def run_as_cron(command: list[str], line: str, environment: Mapping[str, str]) -> None:
    """Run a line of a crontab as cron does after a reboot."""
    word, _, rest = line.partition(" ")
    assert word == "@reboot"
    subprocess.run([*command, "/bin/sh", "-c", rest.replace("\\%", "%")], env=environment, check=True, timeout=120)


def events_of(sandbox: Sandbox) -> list[str]:
    return [json.loads(line)["event"] for line in sandbox("events", "-o", "json").stdout.splitlines()]


def ready_tasks(sandbox: Sandbox) -> int:
    """Count the servers that run, without a command that would start an agent."""
    return sum(" worker:" in title for title in sandbox.processes().values())


def test_the_tasks_of_this_machine_come_back(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: kept\njobs: {worker: {tasks: 2}}\n")
    sandbox("up", spec)
    (unit,) = sandbox.json("doctor", spec, "--print-systemd")
    assert unit["host"] == "localhost"
    assert unit["file"] == "~/.config/systemd/user/tfcluster-kept.service"
    assert "ExecStart=/bin/sh -c " in unit["unit"]
    assert unit["cron"] in sandbox("doctor", spec, "--print-systemd").stdout
    bare = {name: value for name, value in sandbox.environment.items() if not name.startswith("XDG_STATE")}
    sandbox.kill_agent()
    assert "host-rebooted" not in events_of(sandbox), "its agent has died"
    reboot(sandbox, sandbox.folder / "run", state_folder=sandbox.folder / "state")
    run_as_cron([], unit["cron"], bare)
    wait_for(lambda: ready_tasks(sandbox) == 2)
    assert events_of(sandbox).count("host-rebooted") == 1
    sandbox.kill_agent()
    assert events_of(sandbox).count("host-rebooted") == 1, "it is known by now"
    assert sandbox.wait_until("running")["tasks"][0]["state"] == "ready"
    sandbox("down")
    run_as_cron([], unit["cron"], bare)  # there is nothing to start
    assert sandbox.leftovers() == []


def code_of_agent(sandbox: Sandbox) -> Path:
    """Return the folder of the code that the agent runs; it holds a lock in there."""

    def agents() -> list[int]:
        return [pid for pid, title in sandbox.processes().items() if " agent on " in title]

    (agent,) = wait_for(lambda: len(found := agents()) == 1 and found)  # a child has its title for a moment
    (code,) = [Path(path).parent.parent for path in {*held_by(agent)} if path.endswith("/tfcluster/__init__.py")]
    return code


@pytest.mark.slow
def test_the_code_that_wrote_the_journal_is_started(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: kept\njobs: {worker: {tasks: 2}}\n")
    (unit,) = sandbox.json("doctor", spec, "--print-systemd")
    other = sandbox.folder / "other environment"
    shutil.copytree(PACKAGE_ROOT / "tfcluster", other / "tfcluster")
    sandbox("up", spec, env={"PYTHONPATH": f"{other}:{sandbox.environment['PYTHONPATH']}"})
    assert code_of_agent(sandbox) == other
    reboot(sandbox, sandbox.folder / "run")
    run_as_cron([], unit["cron"], sandbox.environment)
    wait_for(lambda: ready_tasks(sandbox) == 2)
    assert code_of_agent(sandbox) == other
    reboot(sandbox, sandbox.folder / "run")
    shutil.rmtree(other)
    run_as_cron([], unit["cron"], sandbox.environment)
    wait_for(lambda: ready_tasks(sandbox) == 2)
    assert code_of_agent(sandbox) == PACKAGE_ROOT, "it is not there any more"


@pytest.mark.slow
@pytest.mark.needs("systemd")
def test_systemd_accepts_the_unit(sandbox: Sandbox) -> None:
    here = sandbox.spec("name: kept\njobs: {worker: {tasks: 2}}\n")
    shell = 'source "$HOME/a b"; 100%'
    hosts = f"name: kept\nhosts: {{a: {{ssh: a, shell: '{shell}'}}}}\njobs: {{worker: {{tasks: 1, hosts: [a]}}}}\n"
    for spec in (here, sandbox.spec(hosts, "other.yaml")):
        (unit,) = sandbox.json("doctor", spec, "--print-systemd")
        file = sandbox.folder / Path(unit["file"]).name
        file.write_text(unit["unit"])
        verify = ["systemd-analyze", "--user", "verify", str(file)]
        result = subprocess.run(verify, env=sandbox.environment, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_the_tasks_of_another_host_come_back(tmp_path: Path) -> None:
    with over(tmp_path, "alpha") as sandbox:
        spec = sandbox.spec(sandbox.text(("alpha",), "jobs: {worker: {tasks: 2}}\n"))
        sandbox("up", spec)
        (unit,) = sandbox.json("doctor", spec, "--print-systemd")
        home = sandbox.network.home("alpha")
        code, state = code_of_agent(sandbox), home / "state" / "tfcluster" / "wide" / "alpha"
        (link,) = [path for path in code.parent.iterdir() if path.is_symlink()]
        assert link.resolve() == (state / "code").resolve() == code, "it is not pruned"
        reboot(sandbox, home / "run")
        (code.parent / "another").mkdir()  # a command of another version has looked at the host
        variables = {"XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run", "XDG_CACHE_HOME": "cache"}
        environment = {
            **{name: str(home / folder) for name, folder in variables.items()},
            **{"HOME": str(home), "PATH": os.environ["PATH"], "TEST_MARK": sandbox.network.mark},
        }
        run_as_cron(sandbox.network.network["alpha"].command(), unit["cron"], environment)
        wait_for(lambda: ready_tasks(sandbox) == 2)
        assert code_of_agent(sandbox) == code
        sandbox.wait_until("running")
        sandbox("down")
        wait_for(lambda: not sandbox.network.leftovers())
