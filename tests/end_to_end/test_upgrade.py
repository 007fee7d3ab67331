"""A newer tfcluster takes over the cluster of an older one; an older one refuses that of a newer one, and its data."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, SCRIPTS, Result, Sandbox, make_sandbox, wait_for
from tests.hosts import over
from tests.older import OLDER, make_older
from tfcluster.version import __version__

UPGRADED = f"agent upgraded from {OLDER} "
SPEC = "name: old\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"
# Prints lines until there is a file, and says whether it was asked to stop.
SCRIPT = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.05)
print("last of", number, flush=True)
"""
VARIABLE = (SCRIPTS / "keeps_variable.py").read_text()


@pytest.fixture(scope="module")
def older_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_older(tmp_path_factory.mktemp("older"))


@pytest.fixture(scope="module")
def old_environment(older_version: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT / 'tests' / 'changed'}:{older_version}"}


def state_of(sandbox: Sandbox, run: str) -> str:
    return str(next(each["state"] for each in sandbox.json("runs") if each["run"] == run))


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("line ")]


def numbered(lines: list[str]) -> bool:
    return lines == [f"line {number}" for number in range(len(lines))]


def tasks_and_agent(status: Any) -> tuple[list[int], int]:
    """Return the pids of the tasks and of the agent."""
    return [task["pid"] for task in status["tasks"]], status["hosts"][0]["agent_pid"]


def test_only_a_change_upgrades_a_cluster_and_older_commands_then_refuse_it(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec, env=old_environment)
    tasks, agent = tasks_and_agent(sandbox.json("status", env=old_environment))
    for words in (["status"], ["logs", "-n", "1"], ["devices"], ["runs"], ["up", "--dry-run"]):
        assert "`tfcluster up` with the spec replaces the agent" in sandbox(*words, code=1).stderr
    assert tasks_and_agent(sandbox.json("status", env=old_environment)) == (tasks, agent), "it is not locked out"
    sandbox.kill_agent()
    for words in (["status"], ["logs", "-n", "1"]):
        assert f"the cluster's agent is tfcluster {OLDER} " in sandbox(*words, code=1).stderr
    assert not sandbox.pids(" agent on ")
    assert tasks_and_agent(sandbox.json("status", env=old_environment))[0] == tasks

    assert sandbox("run", sandbox.spec("print('done')\n", "script.py")).stderr.count(UPGRADED) == 1
    upgraded = tasks_and_agent(sandbox.status())
    assert upgraded[0] == tasks
    for command in (["up", spec], ["status"], ["run", "pi"], ["restart", "--yes"], ["scale", "worker=1"], ["down"]):
        assert f"Install tfcluster {__version__} or newer" in sandbox(*command, code=1, env=old_environment).stderr
    assert tasks_and_agent(sandbox.status()) == upgraded


@pytest.mark.slow
def test_down_ends_a_cluster_whose_older_agent_has_died(sandbox: Sandbox, old_environment: dict[str, str]) -> None:
    sandbox("up", sandbox.spec(SPEC), env=old_environment)
    sandbox.kill_agent()
    assert "3 tasks stopped" in sandbox("down").stdout
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_a_run_that_has_no_driver_yet_continues_through_an_upgrade(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    spec, end = sandbox.spec(SPEC, warm=True), sandbox.folder / "end"
    sandbox("up", spec, env=old_environment)
    run = sandbox("run", "--detach", sandbox.spec(SCRIPT, "script.py"), end, env=old_environment).stdout.strip()
    lasting = sandbox.with_settings({"UPGRADE_DRIVERS_SECONDS": 120, "AGENT_START_SECONDS": 180})
    sandbox("up", spec, env=lasting)  # while the older fork server imports TensorFlow
    end.touch()
    sandbox("wait", run)


@pytest.mark.slow
def test_the_log_of_a_task_loses_no_line_while_its_log_writer_is_replaced(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec, env=old_environment)
    older = {*sandbox.pids(" log writer")}
    [output] = {os.readlink(f"/proc/{pid}/fd/1") for pid in sandbox.pids(" ps:0")}
    upgraded = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with open(output, "ab", buffering=0) as file:  # as the task's process has it
            while not upgraded.is_set():
                file.write(b"line %d\n" % written)
                written += 1
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: written > 100)
        sandbox("up", spec)
        after = written
        wait_for(lambda: written > after + 100)
    finally:
        upgraded.set()
        writer.join()
    assert {*sandbox.pids(" log writer")} - older
    wait_for(lambda: f"line {written - 1}\n" in sandbox("logs", "ps:0", "--no-prefix").stdout)
    lines = [line for line in sandbox("logs", "ps:0", "--no-prefix").stdout.splitlines() if line.startswith("line ")]
    assert numbered(lines)


CHANGES = ("down", "rerun old", "launch --each worker script.py script.py")


@pytest.mark.slow
@pytest.mark.parametrize("command", CHANGES)
def test_a_command_that_changes_the_cluster_says_in_one_line_that_it_upgrades(
    sandbox: Sandbox, old_environment: dict[str, str], command: str
) -> None:
    sandbox("up", sandbox.spec(SPEC), env=old_environment)
    sandbox.spec(SCRIPT, "script.py")
    if "rerun" in command:
        sandbox("run", "--name", "old", "script.py", "script.py", env=old_environment)
    said = [line for line in sandbox(*command.split()).stderr.splitlines() if "agent" in line or "older" in line]
    assert [line.startswith(UPGRADED) for line in said] == [True]


@pytest.mark.slow
def test_all_that_a_cluster_does_continues_through_an_upgrade(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    # An agent that adopts a run cancels it after this time, if the command that waits for it does not come back.
    settings = sandbox.with_settings({"RUN_OWNER_RECONNECT_SECONDS": 1.0, "RPC_TIMEOUT_SECONDS": 60.0})
    old: Callable[..., Result] = partial(sandbox, env={**old_environment, **settings})
    assert OLDER in old("--version").stdout
    script, variable = sandbox.spec(SCRIPT, "script.py"), sandbox.spec(VARIABLE, "variable.py")
    old("up", sandbox.spec(SPEC, warm=True))
    old("run", variable, "set")
    end = sandbox.folder / "end"
    detached = old("run", "--detach", script, end).stdout.strip()
    launch = old("launch", "--detach", script, end).stdout.strip()
    watched = sandbox.start("run", script, end, env={**old_environment, **settings})
    followed_to = sandbox.folder / "followed"
    wait_for(lambda: len(json.loads(old("runs", "-o", "json").stdout)) == 4)

    status = json.loads(old("status", "-o", "json").stdout)
    assert {run["run"] for run in status["runs"]} >= {detached, launch}
    linear = old("run", "linear", "--detach", "--steps", "10000", "--seed", "3").stdout.strip()
    upgrade = sandbox("run", "pi", "--samples", "1e6", "-o", "json", env=settings)
    assert upgrade.stderr.count(UPGRADED) == 1
    with followed_to.open("w") as output:
        follower = sandbox.start("logs", "-f", detached, "--no-prefix", stdout=output)
        wait_for(lambda: len(lines_of(followed_to)) > 5)
        assert json.loads(upgrade.stdout.splitlines()[-1])["state"] == "succeeded"
        assert UPGRADED not in sandbox("run", "pi", "--samples", "1e6", env=settings).stderr
        assert [task["pid"] for task in sandbox.status()["tasks"]] == [task["pid"] for task in status["tasks"]]
        upgraded_at = time.monotonic()

        assert f"Install tfcluster {__version__} or newer" in watched.communicate(timeout=60)[1]
        assert watched.returncode == 1
        assert "upgraded" in sandbox("events").stdout

        wait_for(lambda: time.monotonic() > upgraded_at + 3.0)  # longer than an orphan is kept
        active = [run["run"] for run in sandbox.json("runs") if run["state"] == "running"]
        assert {detached, launch} <= set(active), "nothing was cancelled"
        assert len(active) >= 3, "nor was the run of the command that had to end"
        end.touch()
        wait_for(lambda: {state_of(sandbox, run) for run in [*active, linear]} == {"succeeded"})
        follower.terminate()
        follower.communicate(timeout=30)
    assert numbered(lines_of(followed_to))
    kept = sandbox("logs", detached, "--no-prefix").stdout.splitlines()
    assert kept[-1] == f"last of {len(kept) - 1}"
    assert numbered(kept[:-1])
    assert "kept 42" in sandbox("run", variable).stdout
    assert "3 tasks stopped" in sandbox("down").stdout
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_two_commands_that_upgrade_at_the_same_time_start_one_agent(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    sandbox("up", sandbox.spec(SPEC), env=old_environment)
    sandbox.spec(SCRIPT, "script.py")
    commands = [sandbox.start("run", "script.py", "script.py") for _ in range(3)]
    errors = "".join(command.communicate(timeout=90)[1] for command in commands)
    assert [command.returncode for command in commands] == [0, 0, 0], errors
    assert errors.count(UPGRADED) == 1


JOBS = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 2, hosts: [alpha, beta]}\n"


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_hosts_are_upgraded_and_one_that_was_away_later(tmp_path: Path, old_environment: dict[str, str]) -> None:
    names = ("alpha", "beta")
    with over(tmp_path, *names) as sandbox:
        spec = sandbox.spec(f"network: private\n{sandbox.text(names, JOBS)}")
        sandbox("up", spec, env=old_environment)
        before = sandbox.json("status", env=old_environment)
        forwarders = {*sandbox.pids(" forwarder")}
        assert len(forwarders) == 2
        with sandbox.without("link", "beta"):
            away = sandbox("run", "pi", "--samples", "1e6", "--devices", "/job:worker/task:0")
            assert f"host 'alpha': {UPGRADED}" in away.stderr
        seen = sandbox("status", code=5)
        assert (seen.stdout + seen.stderr).count(f"agent is tfcluster {OLDER}") == 1, "alpha is new, beta is not"
        result = sandbox("up", spec)
        assert f"host 'beta': {UPGRADED}" in result.stderr
        assert f"host 'alpha': {UPGRADED}" not in result.stderr
        after = sandbox.wait_until("running")
        assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
        assert {*sandbox.pids(" forwarder")} == forwarders, "no connection was cut"
        run = sandbox.json("run", "pi", "--samples", "1e6")
        assert len(run["devices"]) == 2, "the tasks of both hosts reach each other"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with all that tfcluster depends on, but without tfcluster."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
    return tmp_path / "venv"


def install(environment: Path, source: Path, folder: Path) -> None:
    """Build a wheel of a release, and install it with pip over what is installed."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run([*map(str, build)], cwd=source, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([*map(str, pip)], check=True, capture_output=True)


@pytest.mark.slow
def test_the_new_version_is_installed_over_the_old_one_while_the_cluster_is_up(
    tmp_path: Path, environment: Path, older_version: Path
) -> None:
    install(environment, older_version, tmp_path / "old")
    with make_sandbox(tmp_path, (str(environment / "bin" / "tfcluster"),)) as installed:
        command = partial(installed, env={"PYTHONPATH": str(ROOT / "tests" / "changed")})
        assert OLDER in command("--version").stdout
        script, end = installed.spec(SCRIPT, "script.py"), tmp_path / "end"
        command("up", installed.spec(SPEC, warm=True))
        run = command("run", "--detach", script, end).stdout.strip()
        wait_for(lambda: "line 0" in command("logs", run).stdout)  # it has imported all that it needs of the old one
        before = json.loads(command("status", "-o", "json").stdout)

        install(environment, ROOT, tmp_path / "new")
        assert __version__ in command("--version").stdout
        os.kill(before["tasks"][2]["pid"], 9)  # the old agent restarts it, with the new files on the disk
        wait_for(lambda: {*installed.pids(" worker:1")} - {before["tasks"][2]["pid"]})
        assert UPGRADED in command("run", "pi", "--samples", "1e6").stderr
        after = json.loads(command("status", "-o", "json").stdout)
        assert [task["pid"] for task in after["tasks"][:2]] == [task["pid"] for task in before["tasks"][:2]]
        assert [task["restarts"] for task in after["tasks"]] == [0, 0, 1]
        end.touch()
        wait_for(lambda: re.search(rf"{run} .* succeeded", command("runs").stdout))
        command("down")


_NEWER = "was written by tfcluster 9.9.9, which is newer"


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "logs" not in path.parts}


def make_newer(path: Path, field: str = "format") -> None:
    """Change the first line of a file as if a newer version had written it."""
    first, _, rest = path.read_text().partition("\n")
    path.write_text(json.dumps({**json.loads(first), field: 99, "tfcluster": "9.9.9"}) + f"\n{rest}")


@pytest.mark.parametrize(
    ("field", "commands"),
    [
        ("format", ["status", "down", "up"]),
        pytest.param("protocol", ["status", "up", "runs", "down", "down --all", "up"], marks=pytest.mark.slow),
    ],
)
def test_a_newer_journal_stays_with_all_that_it_names(sandbox: Sandbox, field: str, commands: list[str]) -> None:
    spec = sandbox.spec("name: kept\njobs: {worker: {tasks: 1, env: {TOKEN: {secret: abc}}}}\n")
    sandbox("up", spec)
    servers = {pid for pid, title in sandbox.processes().items() if "worker:0" in title}
    sandbox.kill_agent()
    state, runtime = sandbox.folder / "state" / "tfcluster" / "kept", sandbox.folder / "run" / "tfcluster"
    journal = state / "localhost" / "journal.json"
    written = journal.read_bytes()
    (state / "localhost" / "lock").unlink()
    for name in ("forwarding.json", "forwarder.json"):
        (state / "localhost" / name).write_text("{}")
    make_newer(journal, field)
    before = {**files_below(state), **files_below(runtime)}
    assert any(path.suffix == ".secrets" for path in before)
    for command in commands:
        error = sandbox(*command.split(), code=1).stderr
        assert f"{journal} {_NEWER}" in error
        assert "damaged" not in error
    wait_for(lambda: not (state / "localhost" / "lock").exists())  # the last agent that refused ends a moment later
    assert {**files_below(state), **files_below(runtime)} == before
    assert servers <= sandbox.processes().keys()
    for name in ("forwarding.json", "forwarder.json"):
        (state / "localhost" / name).unlink()
    journal.write_bytes(written)
    assert {task["pid"] for task in sandbox.wait_until("running")["tasks"]} <= servers


@pytest.mark.slow
def test_a_newer_record_of_a_run_is_seen_and_stays(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: kept\njobs: {worker: {tasks: 1}}\n"))
    sandbox("run", sandbox.spec("print('done')\n", "script.py"))
    (record,) = sandbox.folder.glob("state/tfcluster/kept/localhost/runs/script-py-*/record.json")
    sandbox.kill_agent()  # it knows the run without the record
    make_newer(record)
    text, run = record.read_text(), record.parent.name
    (shown,) = [each for each in sandbox.json("runs") if each["run"] == run]
    assert shown["state"] == "unreadable"
    assert f"{record}: written by tfcluster 9.9.9" in shown["error"]["message"]
    assert "unreadable" in sandbox("runs").stdout
    assert run in sandbox("runs", run).stdout
    sandbox("attach", run)  # its events can be read
    assert f"{record}: written by tfcluster 9.9.9" in sandbox("rerun", run, code=1).stderr
    sandbox("down")
    assert record.read_text() == text
