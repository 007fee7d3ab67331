"""A newer tfcluster takes over the cluster of an older one, and an older one refuses that of a newer one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BARE_FORK_SERVER, ROOT, Result, Sandbox, make_sandbox, wait_for
from tests.end_to_end.test_ssh import over
from tests.releases import FIRST, unpack
from tfcluster.version import __version__

UPGRADED = f"agent upgraded from {FIRST} "
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
# Gives the ps a variable that no run owns, or prints its value.
VARIABLE = """
import sys
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
with tf.device("/job:ps/task:0"):
    kept = tf.get_variable("kept", initializer=0, use_resource=False)
import os
with tf.Session(os.environ["TFCLUSTER_MASTER"]) as session:
    if "set" in sys.argv:
        session.run(kept.assign(42))
    print("kept", session.run(kept))
"""

Old = Callable[..., Any]


@pytest.fixture(scope="module")
def first_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(FIRST, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def old_environment(first_release: Path) -> dict[str, str]:
    """The environment of commands of the first release."""
    return {"PYTHONPATH": f"{ROOT / 'tests' / 'changed'}:{first_release}"}


def state_of(sandbox: Sandbox, run: str) -> str:
    return str(next(each["state"] for each in sandbox.json("runs") if each["run"] == run))


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("line ")]


def pids_of(sandbox: Sandbox, words: str) -> set[int]:
    """Return the pids of the processes that have words in their title."""
    return {pid for pid, title in sandbox.processes().items() if words in title}


def numbered(lines: list[str]) -> bool:
    """Return whether no line is missing and none is there twice."""
    return lines == [f"line {number}" for number in range(len(lines))]


def test_a_newer_command_takes_over_a_cluster_and_older_ones_refuse_it_then(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec, env=old_environment)
    before = json.loads(sandbox("status", "-o", "json", env=old_environment).stdout)
    for words in (["status"], ["logs", "-n", "1"], ["devices"], ["runs"]):
        assert "`tfcluster up` with the spec replaces the agent" in sandbox(*words, code=1).stderr
    after = json.loads(sandbox("status", "-o", "json", env=old_environment).stdout)  # looking does not lock it out
    assert after["hosts"][0]["agent_pid"] == before["hosts"][0]["agent_pid"]

    script = sandbox.spec("print('done')\n", "script.py")
    assert sandbox("run", script, env={"TEST_CHANGES": json.dumps(BARE_FORK_SERVER)}).stderr.count(UPGRADED) == 1
    upgraded = sandbox.status()
    assert [task["pid"] for task in upgraded["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert upgraded["hosts"][0]["agent_pid"] != before["hosts"][0]["agent_pid"]
    for command in (["up", spec], ["status"], ["run", "pi"], ["restart", "--yes"], ["scale", "worker=1"], ["down"]):
        assert f"Install tfcluster {__version__} or newer" in sandbox(*command, code=1, env=old_environment).stderr
    after = sandbox.status()
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert after["hosts"][0]["agent_pid"] == upgraded["hosts"][0]["agent_pid"]


def test_looking_leaves_a_cluster_whose_older_agent_has_died_to_the_older_version(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    sandbox("up", sandbox.spec(SPEC), env=old_environment)
    tasks = pids_of(sandbox, "worker:") | pids_of(sandbox, "ps:")
    sandbox.kill_agent()
    for words in (["status"], ["logs", "-n", "1"]):
        assert f"the cluster's agent is tfcluster {FIRST} " in sandbox(*words, code=1).stderr
    assert not pids_of(sandbox, " agent on ")
    seen = json.loads(sandbox("status", "-o", "json", env=old_environment).stdout)
    assert {task["pid"] for task in seen["tasks"]} == tasks


@pytest.mark.slow
def test_a_run_that_has_no_driver_yet_continues_through_an_upgrade(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    spec, end = sandbox.spec(SPEC), sandbox.folder / "end"
    sandbox("up", spec, env=old_environment)
    run = sandbox("run", "--detach", sandbox.spec(SCRIPT, "script.py"), end, env=old_environment).stdout.strip()
    sandbox("up", spec)  # while the older fork server imports TensorFlow
    end.touch()
    sandbox("wait", run)


@pytest.mark.slow
def test_the_log_of_a_task_loses_no_line_while_its_log_writer_is_replaced(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    spec = sandbox.spec(SPEC)
    sandbox("up", spec, env=old_environment)
    older = pids_of(sandbox, " log writer")
    [output] = {os.readlink(f"/proc/{pid}/fd/1") for pid in pids_of(sandbox, " ps:0")}
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
    assert pids_of(sandbox, " log writer") - older
    wait_for(lambda: f"line {written - 1}\n" in sandbox("logs", "ps:0", "--no-prefix").stdout)
    lines = [line for line in sandbox("logs", "ps:0", "--no-prefix").stdout.splitlines() if line.startswith("line ")]
    assert numbered(lines)


def changes(*words: str) -> Any:
    return pytest.param(words, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "words",
    [
        changes("down"),
        changes("run", "pi", "--samples", "1e5"),
        changes("rerun", "pi-old"),
        changes("cancel", "pi-old"),
        changes("restart", "worker", "--yes"),
        changes("scale", "worker=1", "--yes"),
        changes("launch", "--each", "worker", "script.py", "script.py"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_changes_the_cluster_says_in_one_line_that_it_upgrades(
    sandbox: Sandbox, old_environment: dict[str, str], words: tuple[str, ...]
) -> None:
    sandbox("up", sandbox.spec(SPEC), env=old_environment)
    if "pi-old" in words:
        sandbox("run", "pi", "--samples", "1e5", "--name", "pi-old", env=old_environment)
    sandbox.spec(SCRIPT, "script.py")
    said = [line for line in sandbox(*words).stderr.splitlines() if "agent" in line or "older" in line]
    assert [line.startswith(UPGRADED) for line in said] == [True]


@pytest.mark.slow
def test_all_that_a_cluster_does_continues_through_an_upgrade(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    # An agent that adopts a run cancels it after this time, if the command that waits for it does not come back.
    settings = sandbox.with_settings({"RUN_OWNER_RECONNECT_SECONDS": 1.0, "RPC_TIMEOUT_SECONDS": 60.0})
    old: Callable[..., Result] = partial(sandbox, env={**old_environment, **settings})
    assert FIRST in old("--version").stdout
    script, variable = sandbox.spec(SCRIPT, "script.py"), sandbox.spec(VARIABLE, "variable.py")
    old("up", sandbox.spec(SPEC))
    old("run", variable, "set")
    end = sandbox.folder / "end"
    detached = old("run", "--detach", script, end).stdout.strip()
    launch = old("launch", "--detach", script, end).stdout.strip()
    watched = sandbox.start("run", script, end, env={**old_environment, **settings})
    followed_to = sandbox.folder / "followed"
    wait_for(lambda: len(json.loads(old("runs", "-o", "json").stdout)) == 4)

    status = json.loads(old("status", "-o", "json").stdout)
    assert {run["run"] for run in status["runs"]} >= {detached, launch}
    linear = old("run", "linear", "--detach", "--steps", "30000", "--seed", "3").stdout.strip()
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


def test_down_of_a_newer_version_ends_what_an_older_agent_has_left(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    sandbox("up", sandbox.spec(SPEC), env=old_environment)
    sandbox.kill_agent()
    assert "3 tasks stopped" in sandbox("down").stdout
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_two_commands_that_upgrade_at_the_same_time_start_one_agent(
    sandbox: Sandbox, old_environment: dict[str, str]
) -> None:
    sandbox("up", sandbox.spec(SPEC), env=old_environment)
    commands = [sandbox.start("run", "pi", "--samples", "1e5") for _ in range(3)]
    errors = "".join(command.communicate(timeout=90)[1] for command in commands)
    assert [command.returncode for command in commands] == [0, 0, 0], errors
    assert errors.count(UPGRADED) == 1


JOBS = "jobs:\n  ps: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 2, hosts: [alpha, beta]}\n"


@pytest.mark.slow
@pytest.mark.needs("sshd")
@pytest.mark.parametrize("network", ["closed", "private"])
def test_hosts_are_upgraded_and_one_that_was_away_later(
    tmp_path: Path, old_environment: dict[str, str], network: str
) -> None:
    names = ("alpha", "beta")
    with over(tmp_path, *names) as sandbox:
        spec = sandbox.spec(f"network: {network}\n{sandbox.text(names, JOBS)}")
        sandbox("up", spec, env=old_environment)
        before = json.loads(sandbox("status", "-o", "json", env=old_environment).stdout)
        forwarders = pids_of(sandbox, " forwarder")
        assert len(forwarders) == (2 if network == "private" else 0)
        with sandbox.without("link", "beta"):
            away = sandbox("run", "pi", "--samples", "1e6", "--devices", "/job:worker/task:0")
            assert f"host 'alpha': {UPGRADED}" in away.stderr
        seen = sandbox("status", code=5)
        assert (seen.stdout + seen.stderr).count(f"agent is tfcluster {FIRST}") == 1, "alpha is new, beta is not"
        result = sandbox("up", spec)
        assert f"host 'beta': {UPGRADED}" in result.stderr
        assert f"host 'alpha': {UPGRADED}" not in result.stderr
        after = sandbox.wait_until("running")
        assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
        assert pids_of(sandbox, " forwarder") == forwarders, "no connection was cut"
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


@pytest.fixture
def installed(tmp_path: Path, environment: Path) -> Iterator[Sandbox]:
    """A sandbox that runs the command of the virtual environment."""
    with make_sandbox(tmp_path, (str(environment / "bin" / "tfcluster"),)) as sandbox:
        yield sandbox


@pytest.mark.slow
def test_the_new_version_is_installed_over_the_old_one_while_the_cluster_is_up(
    tmp_path: Path, environment: Path, first_release: Path, installed: Sandbox
) -> None:
    changed = {"PYTHONPATH": str(ROOT / "tests" / "changed")}
    command = partial(installed, env=changed)
    install(environment, first_release, tmp_path / "first")
    assert FIRST in command("--version").stdout
    script, end = installed.spec(SCRIPT, "script.py"), tmp_path / "end"
    command("up", installed.spec(SPEC))
    run = command("run", "--detach", script, end).stdout.strip()
    wait_for(lambda: "line 0" in command("logs", run).stdout)  # it has imported all that it needs of the old version
    before = json.loads(command("status", "-o", "json").stdout)

    install(environment, ROOT, tmp_path / "new")
    assert __version__ in command("--version").stdout
    os.kill(before["tasks"][2]["pid"], 9)  # the old agent restarts it, with the new files on the disk
    wait_for(lambda: pids_of(installed, " worker:1") - {before["tasks"][2]["pid"]})
    assert UPGRADED in command("run", "pi", "--samples", "1e6").stderr
    after = json.loads(command("status", "-o", "json").stdout)
    assert [task["pid"] for task in after["tasks"][:2]] == [task["pid"] for task in before["tasks"][:2]]
    assert [task["restarts"] for task in after["tasks"]] == [0, 0, 1]
    end.touch()
    wait_for(
        lambda: f'"run": "{run}"' in command("runs", "-o", "json").stdout and "succeeded" in command("runs").stdout
    )
    command("down")
