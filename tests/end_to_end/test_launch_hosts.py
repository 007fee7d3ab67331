"""`tfcluster launch` over several hosts with real sshds: members on all of them, one coordinator, closed ports."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import zipapp
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, environment_of, lines_of, read_until, wait_for
from tests.end_to_end.test_ssh import Over, agent_on, dial, over

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  worker: {tasks: 3, hosts: [alpha, beta]}\n"
ACT = """
import json, os, signal, sys, time
import beside, tfcluster
acts = dict(argument.split("=") for argument in sys.argv[1:])
act = acts.get(os.environ["TFCLUSTER_TASK"], "wait")
if "first" in acts and os.environ["TFCLUSTER_ATTEMPT"] != "0":
    act = "0"
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
tfcluster.metric("rank", int(os.environ["TFCLUSTER_RANK"]), 0)
print(json.dumps({"act": act, "beside": beside.NAME, "cluster": cluster}), flush=True)
if act == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if act == "wait":
    time.sleep(1000)
sys.exit(int(act))
"""
# Each of three workers over two hosts adds up what all have, again and again.
TRAIN = """
import time
import zipapp
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    own = tf.Variable(2.0)
@tf.function
def total():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", own.read_value()))
for _ in range(1000):
    print("total", float(strategy.experimental_local_results(total())[0]))
    time.sleep(0.2)
"""


@contextmanager
def hosts_with_code(folder: Path, way: str, *, warm: bool) -> Iterator[Over]:
    """Two hosts with a cluster up, and a stranger."""
    with over(folder, *NAMES, "stranger", has_sshd=way == "ssh") as sandbox:
        code = sandbox.folder / "code"
        code.mkdir()
        (code / "act.py").write_text(ACT)
        (code / "beside.py").write_text("NAME = 'module'\n")
        (code / "train.py").write_text(TRAIN)
        sandbox("up", sandbox.spec(sandbox.text(NAMES, JOBS), warm=warm))
        yield sandbox


@pytest.fixture(scope="module")
def lab(needs_sshd: None, way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """The hosts for scripts that do without TensorFlow."""
    with hosts_with_code(tmp_path_factory.mktemp("lab"), way, warm=False) as lab:
        yield lab


@pytest.fixture(scope="module")
def training_lab(needs_sshd: None, way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """The hosts for scripts with TensorFlow."""
    with hosts_with_code(tmp_path_factory.mktemp("training"), way, warm=True) as lab:
        yield lab


def launch(lab: Over, *arguments: str, code: int) -> list[dict[str, Any]]:
    """The events of a launch."""
    return lines_of(lab("launch", "-o", "json", *arguments, code=code, cwd=lab.folder / "code").stdout)


def programs(lab: Over) -> list[str]:
    return [line for line in lab.network.processes().values() if line.endswith((" program", " host"))]


@pytest.mark.every_way
def test_members_run_on_the_hosts_of_their_tasks_with_the_code_beside_them(lab: Over) -> None:
    events = launch(lab, "act.py", "worker:0=0", "worker:1=0", "worker:2=0", code=0)
    hosts = {each["task"]: each["host"] for each in events if each["event"] == "member"}
    assert hosts == {"worker:0": "alpha", "worker:1": "beta", "worker:2": "alpha"}
    printed = [json.loads(each["line"]) for each in events if each["event"] == "output"]
    assert [each["beside"] for each in printed] == ["module"] * 3
    assert printed[0]["cluster"] == printed[1]["cluster"] == printed[2]["cluster"]
    metrics = {each["task"]: (each["name"], each["value"]) for each in events if each["event"] == "metric"}
    assert metrics == {f"worker:{rank}": ("rank", rank) for rank in range(3)}
    addresses = [lab.network.address(host) for host in ("alpha", "beta", "alpha")]
    assert [each.rpartition(":")[0] for each in printed[0]["cluster"]] == addresses
    (run,) = [each for each in lab.json("runs") if each["run"] == events[0]["run"]]
    assert run["state"] == "succeeded"
    wait_for(lambda: not programs(lab))


@pytest.mark.every_way
def test_a_folder_and_an_archive_with_a_main_module_run_on_the_hosts(lab: Over, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "helper.py").write_text("import sys\nprint('helps', *sys.argv[1:], flush=True)\n")
    (folder / "__main__.py").write_text("import helper\n")
    zipapp.create_archive(folder)
    for start in ("./app", "./app.pyz"):
        assert lab("run", start, "x", cwd=tmp_path).stdout == "helps x\n"
        lines = lab("launch", start, "{rank}", cwd=tmp_path).stdout.splitlines()
        assert sorted(line.partition("| ")[2] for line in lines) == ["helps 0", "helps 1", "helps 2"]


@pytest.mark.slow
def test_code_that_is_sent_is_said_once_and_a_killed_command_is_attached_to(lab: Over) -> None:
    (lab.folder / "code" / "beside.py").write_text("NAME = 'another module'\n")
    command = lab.start("launch", lab.folder / "code" / "act.py")
    wait_for(lambda: len(lab.pids(" program")) == 3)
    command.kill()
    _, error = command.communicate(timeout=60)
    (sent,) = [line for line in error.splitlines() if "sending" in line]
    assert sent.startswith("sending to alpha, beta: ")

    run = lab.json("runs")[-1]["run"]
    wait_for(lambda: lab("logs", run).stdout.count("another module") == 3)
    lab("cancel", run, env={"TFCLUSTER_CLUSTER": "wide"})
    assert lab("attach", run, code=1).stdout.count("another module") == 3
    (lab.folder / "code" / "beside.py").write_text("NAME = 'module'\n")


@pytest.mark.slow
@pytest.mark.every_way
def test_files_of_members_on_all_hosts_are_fetched(lab: Over) -> None:
    path = "os.path.join(os.environ['TFCLUSTER_OUTPUT'], os.environ['TFCLUSTER_TASK'])"
    (lab.folder / "code" / "writes.py").write_text(f"import os\nopen({path}, 'w').write('x')\n")
    run = launch(lab, "--name", "writers", "writes.py", code=0)[0]["run"]
    fetched = lab.json("fetch", "writers", "fetched")
    assert (fetched["run"], fetched["files"]) == (run, 3)
    found = sorted(str(path.relative_to(lab.folder / "fetched")) for path in (lab.folder / "fetched").rglob("*:*"))
    assert found == ["alpha/worker:0", "alpha/worker:2", "beta/worker:1"]
    again = lab.json("rerun", "writers")
    assert (again["program"], again["state"]) == ("script", "succeeded")


@pytest.mark.slow
def test_a_failure_on_one_host_ends_the_members_on_the_other(lab: Over) -> None:
    result = launch(lab, "act.py", "worker:1=5", code=5)[-1]
    assert result["result"].pop("metrics")["worker:1"] == {"rank": 1}
    assert result["result"] == {"exit_code": 5, "task": "worker:1", "host": "beta", "restarts": 0}
    assert result["error"]["message"].startswith("worker:1 on beta ended with exit code 5")
    wait_for(lambda: not programs(lab))


@pytest.mark.slow
def test_the_coordinator_listens_until_all_hosts_are_there(lab: Over) -> None:
    run = lab("launch", "--detach", "act.py", cwd=lab.folder / "code").stdout.strip()
    wait_for(lambda: len(lab("logs", run).stdout.splitlines()) == 3)
    events = lab.network.home("alpha").glob(f"state/tfcluster/wide/alpha/runs/{run}/events.jsonl")
    (address,) = [
        json.loads(line)["address"]
        for path in events
        for line in path.read_text().splitlines()
        if json.loads(line)["event"] == "coordinator"
    ]
    host, _, port = address.rpartition(":")
    machines = lab.network.network
    assert {dial(machines[name], host, int(port)) for name in ("stranger", "beta")} == {"ConnectionRefusedError"}
    stacks = lab("stack", run).stdout
    assert [stacks.count(f"worker:{index} program") for index in range(3)] == [1, 1, 1]
    assert stacks.count("act.py") == 3
    lab("cancel", run)
    wait_for(lambda: not programs(lab))
    assert lab.json("runs")[-1]["state"] == "cancelled"


@pytest.mark.slow
@pytest.mark.every_way
def test_a_host_that_is_lost_before_it_has_connected_is_named_at_once(lab: Over) -> None:
    alpha = lab.network.address("alpha")
    with lab.network.network["beta"].losing(alpha):
        command = lab.start("launch", lab.folder / "code" / "act.py")
        wait_for(lambda: len(programs(lab)) == 1)  # alpha's own
        runs = lab.network.home("beta") / "state" / "tfcluster" / "wide" / "beta" / "runs"
        run = lab.json("runs")[-1]["run"]
        wait_for(lambda: (runs / run).exists())
        with lab.without("way", "beta"):
            _, error = command.communicate(timeout=50)
        assert command.returncode == 5
        message = error.partition("error: ")[2].splitlines()
        assert message[0] == f"{run} was not started"
        assert message[1].startswith("host 'beta' cannot be reached: ")
        assert message[2].startswith("hint: ")
        error = lab("launch", lab.folder / "code" / "act.py", code=1).stderr
        assert re.search(r"error: (\S+) was not started\n.*beta.*: \1 cannot start on host beta: ", error)
    wait_for(lambda: not programs(lab))


@pytest.mark.slow
@pytest.mark.every_way
@pytest.mark.parametrize("loss", ["link", "death"])
def test_a_restart_waits_for_a_host_that_was_lost(lab: Over, loss: str) -> None:
    script = lab.folder / "code" / "act.py"
    command = lab.start("launch", "--max-restarts", "1", script, "first=1", stderr=subprocess.STDOUT)
    for line in command.stdout:
        if '"act": "wait"' in line and "worker:1" in line:
            break
    of_beta = [
        pid for pid in lab.network.processes() if f"{lab.network.home('beta')}/state".encode() in environment_of(pid)
    ]
    with lab.without("link" if loss == "link" else "way", "beta"):
        for pid in of_beta if loss == "death" else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        read_until(command.stdout, "the connection to host beta is lost: restarting all (0 restarts left)")
    output = command.communicate(timeout=120)[0]
    assert command.returncode == 0, output
    assert output.count('"act": "0"') == 3
    wait_for(lambda: not programs(lab))
    lab.wait_until("running")


def start_training(lab: Over) -> Command:
    """Start a training, which TensorFlow ends on all members some seconds after one does not answer any more."""
    command = lab.start("launch", lab.folder / "code" / "train.py")
    read_until(command.stdout, "worker:1 | total 6.0")
    return command


@pytest.mark.slow
def test_a_host_that_is_lost_is_to_blame_for_the_errors_of_the_others(training_lab: Over) -> None:
    command = start_training(training_lab)
    with training_lab.without("link", "beta"):
        _, error = command.communicate(timeout=120)
    first, *others, hint = error.partition("\nerror: ")[2].splitlines()
    assert first == "the connection to host beta is lost"
    # On a busy machine TensorFlow may need longer than the group to notice that; then all members are stopped before.
    assert all(
        re.fullmatch(r"after that, worker:[02] on alpha failed: .*UnavailableError: .*task:1", each) for each in others
    )
    assert len(others) <= 1
    assert hint.startswith("hint: ")
    assert command.returncode == 5
    wait_for(lambda: not programs(training_lab))
    training_lab.wait_until("running")


@pytest.mark.slow
def test_a_member_that_is_frozen_is_to_blame_for_the_errors_of_the_others(training_lab: Over) -> None:
    command = start_training(training_lab)
    (pid,) = training_lab.pids("worker:1 program")
    os.kill(pid, signal.SIGSTOP)
    _, error = command.communicate(timeout=120)
    message = error.partition("\nerror: ")[2].splitlines()
    assert message[0] == f"worker:1 on beta is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
    assert re.fullmatch(r"after that, worker:[02] on alpha failed: .*UnavailableError: .*task:1", message[1])
    assert command.returncode == 1
    wait_for(lambda: not programs(training_lab))


@pytest.mark.slow
def test_a_host_that_is_lost_ends_the_group_of_a_private_cluster(lab: Over) -> None:
    text = lab.text(NAMES, JOBS).replace("name: wide", "name: shut\nnetwork: private")
    lab("up", lab.spec(text, "shut.yaml"))
    try:
        env = lab.with_settings({"LINK_SECONDS": 3})
        command = lab.start("launch", "-c", "shut", lab.folder / "code" / "act.py", stderr=subprocess.STDOUT, env=env)
        read_until(command.stdout, "worker:1")
        with lab.without("link", "beta"):
            output = command.communicate(timeout=90)[0]
        assert "error: the connection to host beta is lost" in output
        assert command.returncode == 5
        wait_for(lambda: not programs(lab))
    finally:
        lab("down", "-c", "shut")


# Writes a byte each tenth of a second to a file with the member's name, in the folder that is its argument.
COUNT = """
import os, sys, time
while True:
    with open(os.path.join(sys.argv[1], os.environ["TFCLUSTER_TASK"]), "a") as file:
        file.write("x")
    time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.every_way
def test_the_cluster_of_a_command_outlives_its_stop_and_not_its_death(lab: Over, tmp_path: Path) -> None:
    spec = lab.spec(lab.text(NAMES, JOBS).replace("name: wide", "name: brief"), "brief.yaml")
    script = lab.folder / "code" / "count.py"
    script.write_text(COUNT)
    env = lab.with_settings({"LAUNCH_REMOTE_LEASE_SECONDS": 3})
    command = lab.start("launch", "--spec", spec, script, tmp_path, env=env)

    def counts() -> list[int]:
        return [path.stat().st_size for path in tmp_path.iterdir()]

    wait_for(lambda: len(counts()) == 3)
    command.send_signal(signal.SIGSTOP)
    before = max(counts())
    wait_for(lambda: min(counts()) > before + 80)  # longer than the lease
    command.kill()
    assert "note: a `tfcluster launch` has started brief" in lab("status", "-c", "brief").stderr
    # The link process ends some minutes after the last command.
    wait_for(lambda: set(lab.pids("brief")) == set(lab.pids("tfcluster: brief connections")))
    acts = [f"worker:{index}=0" for index in range(3)]
    result = lab("launch", "--spec", spec, "act.py", *acts, cwd=lab.folder / "code")
    assert len(result.stdout.splitlines()) == 3
    wait_for(lambda: not lab.pids("brief"))


@pytest.mark.slow
@pytest.mark.every_way
def test_members_can_save_their_state_when_their_host_is_a_pod_that_is_deleted(lab: Over) -> None:
    text = (
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(4)  # longer than a member has that is cancelled\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('trains', flush=True)\n"
        "time.sleep(1000)\n"
    )
    command = lab.start("launch", lab.spec(text, "saves.py"))
    for _ in range(3):
        read_until(command.stdout, "trains")
    os.kill(agent_on(lab, "beta"), signal.SIGPWR)  # what the container of a pod sends; alpha coordinates
    out, error = command.communicate(timeout=60)
    assert "worker:1 | saved" in out
    assert command.returncode == 143, "that of the member"
    assert "worker:1" in error
    wait_for(lambda: not programs(lab))
