"""`tfcluster launch`: a group of processes that run a script, one for each task, which start and end together."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.conftest import (
    REAPED_DAEMON,
    SCRIPTS,
    Sandbox,
    lines_of,
    read_until,
    wait_for,
)
from tfcluster.os.process_handle import is_stopped_by_signal

SPEC = "jobs:\n  chief: {tasks: 1}\n  worker: {tasks: 2}\n  ps: {tasks: 1}\n  evaluator: {tasks: 1}\n"
# Prints what a member sees, one line of JSON each.
LOOK = """
import json, os, sys
names = ("TASK", "RANK", "WORLD_SIZE", "ATTEMPT", "RUN")
seen = {name: os.environ[f"TFCLUSTER_{name}"] for name in names}
of_a_client = sorted({"TFCLUSTER_MASTER", "TFCLUSTER_DEVICES"} & os.environ.keys())
config = json.loads(os.environ["TF_CONFIG"])
print(json.dumps({**seen, "config": config, "args": sys.argv[1:], "of_a_client": of_a_client}))
"""
ACT = (SCRIPTS / "act.py").read_text()


CLUSTER = Cluster(
    SPEC,
    settings={"GROUP_WORKERS_SECONDS": 2, "GROUP_CAUSE_SECONDS": 60},
    files={"look.py": LOOK, "act.py": ACT},
)


@pytest.fixture
def alone(sandbox: Sandbox) -> Sandbox:
    """A sandbox with the scripts and without a cluster."""
    sandbox.spec(ACT, "act.py")
    sandbox.spec("name: two\njobs: {worker: {tasks: 2}}\n", "two.yaml")
    return sandbox


def members(sandbox: Sandbox, *arguments: str) -> dict[str, Any]:
    """Launch look.py; return what each member has seen, by its task."""
    lines = sandbox("launch", *arguments).stdout.splitlines()
    seen = [json.loads(line.partition(" | ")[2]) for line in lines]
    assert [line.partition(" | ")[0].strip() for line in lines] == [each["TASK"] for each in seen]
    return {each["TASK"]: each for each in seen}


def programs(sandbox: Sandbox) -> list[int]:
    """The members that run."""
    return sandbox.pids(" program")


def test_each_member_gets_its_own_place(cluster: Sandbox) -> None:
    seen = members(cluster, "look.py", "{job}:{index} of {world_size} at {address}", "{ps_hosts}", '{"a": {b}}')
    assert sorted(seen) == ["chief:0", "worker:0", "worker:1"]
    assert [seen[task]["RANK"] for task in sorted(seen)] == ["0", "1", "2"]
    clusters = [each["config"]["cluster"] for each in seen.values()]
    assert clusters == clusters[:1] * 3
    assert {job: len(tasks) for job, tasks in clusters[0].items()} == {"chief": 1, "worker": 2}
    assert seen["worker:1"]["config"]["task"] == {"type": "worker", "index": 1}
    assert {(each["WORLD_SIZE"], each["ATTEMPT"]) for each in seen.values()} == {("3", "0")}
    assert len({each["RUN"] for each in seen.values()}) == 1
    assert [each["of_a_client"] for each in seen.values()] == [[]] * 3, "they are no clients of the servers"
    addresses = [address for tasks in clusters[0].values() for address in tasks]
    servers = cluster.tasks("address")
    assert len(set(addresses)) == 3
    assert set(servers.values()).isdisjoint(addresses)
    own = f"worker:1 of 3 at {clusters[0]['worker'][1]}"
    assert seen["worker:1"]["args"] == [own, servers["ps:0"], '{"a": {b}}']


@pytest.mark.slow
def test_the_log_of_a_launch_says_which_member_a_line_is_from(cluster: Sandbox) -> None:
    launched = lines_of(cluster("launch", "-o", "json", "look.py").stdout)
    run = launched[-1]["run"]
    printed = {(event["task"], event["line"]) for event in launched if event["event"] == "output"}
    logged = lines_of(cluster("logs", run, "-o", "json").stdout)
    assert {(line["member"], line["line"]) for line in logged} == printed
    assert {line["task"] for line in logged} == {run}
    shown = cluster("logs", run).stdout.splitlines()
    assert sorted(line.partition(" | ")[0].strip() for line in shown) == ["chief:0", "worker:0", "worker:1"]
    found = cluster("logs", run, "worker:1", "--grep", '"TASK": "worker:1"').stdout.splitlines()
    assert [line.partition(" | ")[0].strip() for line in found] == [f"{run} worker:1"]
    task = cluster.json("logs", "worker:1", "-n", "1")
    assert set(task) == {"task", "time", "line"}


def test_output_is_marked_with_its_task(cluster: Sandbox) -> None:
    events = lines_of(cluster("launch", "-o", "json", "act.py", "all=0").stdout)
    output = {(each["task"], each["stream"], each["line"]) for each in events if each["event"] == "output"}
    assert output == {(task, "stdout", "doing 0") for task in ("chief:0", "worker:0", "worker:1")}
    started = [each["task"] for each in events if each["event"] == "member" and each["state"] == "started"]
    assert sorted(started) == ["chief:0", "worker:0", "worker:1"]
    assert events[-1]["result"] == {"exit_code": 0, "restarts": 0}


def test_the_first_failure_ends_all(cluster: Sandbox) -> None:
    result = lines_of(cluster("launch", "-o", "json", "act.py", "worker:1=kill", code=137).stdout)[-1]
    assert result["state"] == "failed"
    assert (result["result"]["task"], result["result"]["exit_code"]) == ("worker:1", 137)
    assert result["error"]["message"].startswith("worker:1 on localhost was terminated by SIGKILL")
    assert "doing kill" in result["error"]["message"]
    assert not programs(cluster)


def test_an_exception_is_shown_once(cluster: Sandbox) -> None:
    result = cluster("launch", "act.py", "worker:1=raise", code=1)
    assert "error: worker:1 on localhost failed: ValueError: no such data\nhint: The whole output: " in result.stderr
    assert result.stderr.count("ValueError: no such data\n") == 2, "as the member's line, and in the error's first line"
    assert "worker:1 | ValueError: no such data" in result.stderr


def fail_after_another(cluster: Sandbox, act: str, first: str = "0") -> Any:
    """Have worker:1 fail when worker:0 has done what it is to do first, and has exited; return the result."""
    go_on = cluster.folder / "go_on"
    go_on.unlink(missing_ok=True)
    arguments = ("act.py", f"worker:0={first}", f"worker:1={act}", f"await={go_on}")
    command = cluster.start("launch", "--each", "worker", "-o", "json", *arguments)
    for line in command.stdout:
        event = json.loads(line)
        if (event.get("task"), event.get("state")) == ("worker:0", "exited"):
            go_on.touch()
    return event


@pytest.mark.slow
def test_a_member_that_had_exited_comes_first_in_an_error_that_names_it(cluster: Sandbox) -> None:
    result = fail_after_another(cluster, "unavailable")
    start = "worker:0 had exited with code 0 before: worker:1 on localhost failed: OSError: Socket closed"
    assert result["error"]["message"].startswith(start)
    assert (result["result"]["task"], result["result"]["exit_code"]) == ("worker:1", 1)
    result = fail_after_another(cluster, "raise")
    assert result["error"]["message"].startswith("worker:1 on localhost failed: ValueError: no such data")


def test_a_members_own_error_comes_before_one_that_follows_from_it(cluster: Sandbox) -> None:
    result = fail_after_another(cluster, "raise", first="lose")
    lines = result["error"]["message"].splitlines()
    assert lines[0] == "worker:1 on localhost failed: ValueError: no such data"
    assert lines[-1].startswith("after that, worker:0 on localhost failed: OSError: Socket closed")
    assert result["result"]["task"] == "worker:1"


@pytest.mark.slow
def test_workers_that_compute_go_on_when_the_chief_is_done_and_those_that_serve_are_ended(cluster: Sandbox) -> None:
    jobs = ["--each", "chief,worker,ps"]
    events = lines_of(cluster("launch", "-o", "json", *jobs, "act.py", "chief:0=0", "worker:0=compute").stdout)
    exits = [(each["task"], each["exit_code"]) for each in events if each.get("state") == "exited"]
    assert exits[0] == ("chief:0", 0)
    assert sorted(exits[1:3]) == [("worker:0", 0), ("worker:1", 143)]
    assert exits[3] == ("ps:0", 143)
    assert events[-1]["result"] == {"exit_code": 0, "restarts": 0}


def test_a_group_is_started_again_as_a_whole(cluster: Sandbox) -> None:
    arguments = ("--each", "worker", "--max-restarts", "2", "act.py", "worker:1=9", "first=0")
    events = lines_of(cluster("launch", "-o", "json", *arguments).stdout)
    assert events[-1]["result"] == {"exit_code": 0, "restarts": 1}
    started = [(each["task"], each["attempt"]) for each in events if each.get("state") == "started"]
    assert sorted(started) == [("worker:0", 0), ("worker:0", 1), ("worker:1", 0), ("worker:1", 1)]


@pytest.mark.slow
def test_a_group_is_not_started_again_more_often_than_it_may_be(cluster: Sandbox) -> None:
    arguments = ("--each", "worker", "--max-restarts", "2", "act.py", "all=42")
    events = lines_of(cluster("launch", "-o", "json", *arguments, code=42).stdout)
    assert [each["left"] for each in events if each["event"] == "restart"] == [1, 0]
    assert {each["attempt"] for each in events if each.get("state") == "started"} == {0, 1, 2}
    assert events[-1]["result"]["restarts"] == 2


def test_an_interrupt_ends_all(cluster: Sandbox) -> None:
    command = cluster.start("launch", "act.py")
    read_until(command.stdout, "| doing wait")
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    assert not programs(cluster)


SIGNALLED = """
import os, signal, time
task = os.environ["TFCLUSTER_TASK"]
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
    signal.signal(number, lambda number, frame: print(task, signal.Signals(number).name, flush=True))
print(task, "begun", flush=True)
while True:
    time.sleep(0.1)  # a signal just before signal.pause() would be handled at the next one
"""


def test_members_get_the_signals_of_the_command(cluster: Sandbox) -> None:
    cluster.spec(SIGNALLED, "signalled.py")
    command = cluster.start("launch", "--each", "worker", "signalled.py")

    def said() -> set[str]:
        return {command.stdout.readline().partition(" | ")[2].rstrip() for _ in range(2)}

    assert said() == {"worker:0 begun", "worker:1 begun"}
    for name in ("SIGUSR1", "SIGUSR2"):
        command.send_signal(signal.Signals[name])
        assert said() == {f"worker:0 {name}", f"worker:1 {name}"}
    members = programs(cluster)
    command.send_signal(signal.SIGTSTP)  # Ctrl-Z stops the members and then the command
    wait_for(lambda: all(is_stopped_by_signal(pid) for pid in (command.pid, *members)))
    command.send_signal(signal.SIGCONT)
    assert said() == {"worker:0 SIGCONT", "worker:1 SIGCONT"}
    command.send_signal(signal.SIGTERM)
    assert command.wait(60) == 143


def test_a_group_here_ends_with_a_command_that_is_killed(cluster: Sandbox) -> None:
    command = cluster.start("launch", "--each", "worker", "act.py")
    assert len([read_until(command.stdout, "| doing wait") for _ in range(2)]) == 2
    command.kill()
    run = cluster.json("runs")[-1]["run"]
    cluster("wait", run, code=1)
    assert "doing wait" in cluster("attach", run, code=1).stdout
    assert not programs(cluster)


def test_a_group_is_a_run_like_any_other(cluster: Sandbox) -> None:
    run = cluster("launch", "--detach", "act.py").stdout.strip()
    assert run.startswith("act-")
    wait_for(lambda: cluster("logs", run).stdout.count("doing wait") == 3)
    assert (run, "running") in [(each["run"], each["state"]) for each in cluster.status()["runs"]]
    cluster("cancel", run)
    assert cluster("attach", run, code=1).stdout.count("doing wait") == 3
    (record,) = [each for each in cluster.json("runs") if each["run"] == run]
    assert record["state"] == "cancelled"


@pytest.mark.slow
def test_a_group_outlives_its_agent(cluster: Sandbox) -> None:
    command = cluster.start("launch", "act.py", "chief:0=wait")
    read_until(command.stdout, "| doing wait")
    cluster.kill_agent()
    os.kill(programs(cluster)[0], signal.SIGKILL)
    assert command.wait(60) == 137
    cluster.wait_until("running")


@pytest.mark.slow
def test_members_end_with_their_coordinator(cluster: Sandbox) -> None:
    run = cluster("launch", "--detach", "act.py").stdout.strip()
    wait_for(lambda: len(programs(cluster)) == 3)
    (driver,) = [pid for pid, title in cluster.processes().items() if title.endswith(run)]
    os.kill(driver, signal.SIGKILL)
    wait_for(lambda: not cluster.pids(run))
    cluster("attach", run, code=1)


def test_wrong_usage(cluster: Sandbox) -> None:
    assert "the cluster has no job 'master'" in cluster("launch", "--each", "master", "look.py", code=2).stderr
    message = "{master_hosts} in '--at={master_hosts}': the cluster has no job 'master'"
    assert message in cluster("launch", "look.py", "--at={master_hosts}", code=2).stderr


def test_a_cluster_for_the_time_of_the_run(alone: Sandbox) -> None:
    result = alone("launch", "--workers", "2", "act.py", "worker:0=3", code=3)
    assert "worker:0 on localhost ended with exit code 3" in result.stderr
    assert not alone.leftovers()
    (run,) = alone.json("runs", "-c", "launch")
    assert run["state"] == "failed"
    shown = alone("logs", "-c", "launch").stdout.splitlines()
    assert f"{run['run']} worker:0 | doing 3" in shown, "of a cluster without servers, the latest run is shown"
    assert "no task or run 'nobody'" in alone("logs", "nobody", "-c", "launch", code=2).stderr


@pytest.mark.slow
def test_a_script_that_replaces_its_tf_config_is_noted_with_its_line(alone: Sandbox) -> None:
    alone.spec('import os\nos.environ["TF_CONFIG"] = "{}"\nprint("on")\n', "own.py")
    launch = ("launch", "--spec", alone.spec("name: one\njobs: {worker: {tasks: 1}}\n", "one.yaml"))
    for script in (["own.py"], ["-m", "own"]):
        result = alone(*launch, *script)
        assert "note: own.py:2 changes TF_CONFIG, from which a member knows its place: put it below" in result.stderr
        assert result.stdout == "worker:0 | on\n"
    piped = alone.execute("bash", "-c", '"$@" <(cat own.py)', "bash", *alone.command, *launch)
    assert piped.stdout == "worker:0 | on\n"


@pytest.mark.slow
def test_members_have_gpus_that_this_machine_has(alone: Sandbox) -> None:
    jobs = 'jobs:\n  worker: {tasks: 2, gpus: 1, env: {TF_FORCE_GPU_ALLOW_GROWTH: "false"}}\n'
    alone.spec(f'hosts: {{localhost: {{env: {{CUDA_VISIBLE_DEVICES: "GPU-1f,0"}}}}}}\n{jobs}', "listed.yaml")
    alone.spec(jobs, "gpus.yaml")
    names = "'TFCLUSTER_TASK', 'CUDA_VISIBLE_DEVICES', 'TF_FORCE_GPU_ALLOW_GROWTH'"
    alone.spec(f"import os\nprint(*map(os.environ.get, [{names}]), flush=True)\n", "gpus.py")
    gpus = 'def list_gpus(): return [("0", "GPU-0f"), ("1", "GPU-1f")]'
    played = alone.with_fault("tfcluster.processes.gpus", gpus)
    lines = alone("launch", "--spec", "listed.yaml", "gpus.py", env=played).stdout.splitlines()
    assert {line.partition("| ")[2] for line in lines} >= {"worker:0 GPU-1f false", "worker:1 0 false"}
    env = {**played, "CUDA_VISIBLE_DEVICES": "0,7"}
    error = alone("launch", "--spec", "gpus.yaml", "gpus.py", env=env, code=1).stderr
    assert "CUDA_VISIBLE_DEVICES=0,7 names 7, but NVML, the library of NVIDIA's driver, finds 0, 1\n" in error
    assert not alone.leftovers()


@pytest.mark.slow
def test_launches_at_the_same_time_have_clusters_of_their_own(alone: Sandbox) -> None:
    commands = [alone.start("launch", "--workers", "1", "act.py") for _ in range(2)]
    commands.append(alone.start("launch", "--spec", "two.yaml", "act.py"))
    for command in commands:
        read_until(command.stdout, "| doing wait")
    refused = alone("launch", "--spec", "two.yaml", "act.py", code=1)
    assert "another `tfcluster launch` has brought cluster 'two' up" in refused.stderr
    env = {"TFCLUSTER_CLUSTER": "two"}  # of a shell that is set up for another cluster
    assert "doing 0" in alone("launch", "--workers", "1", "act.py", "all=0", env=env).stdout
    for command in commands:
        assert command.poll() is None
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130
    assert not alone.leftovers()


@pytest.mark.slow
def test_the_cluster_of_a_command_that_was_killed_ends_by_itself(alone: Sandbox) -> None:
    env = alone.with_settings({"LAUNCH_LEASE_SECONDS": 5})
    spec = alone.spec("name: launch\njobs: {worker: {tasks: 1}}\n", "launch.yaml")
    command = alone.start("launch", "--spec", spec, "act.py", env=env)
    read_until(command.stdout, "| doing wait")
    note = "note: a `tfcluster launch` has started launch, and stops it at its end; if that command was killed"
    shown = alone("status")
    assert note in shown.stderr
    (run,) = alone.json("status")["runs"]
    (member,) = run["members"]
    assert (member["task"], member["host"], member["exit_code"]) == ("worker:0", "localhost", None)
    assert ["worker:0", "localhost", "running", str(member["pid"])] in map(str.split, shown.stdout.splitlines())
    assert "TASK" not in shown.stdout, "it has no servers"
    (listed,) = alone.json("ls")
    assert (listed["cluster"], listed["state"], listed["tasks"]) == ("launch", "running", 0)
    command.kill()
    wait_for(lambda: not alone.leftovers())
    assert "no command for 5 s, the cluster's lease" in alone("events", "-c", "launch").stdout
    (run,) = alone.json("runs", "-c", "launch")
    assert run["state"] == "cancelled"


@pytest.mark.slow
def test_down_names_the_cluster_of_a_command_that_was_killed(alone: Sandbox) -> None:
    spec = alone.spec("name: two\nlease: 3600\njobs: {worker: {tasks: 1}}\n")
    command = alone.start("launch", "--spec", spec, "act.py")
    read_until(command.stdout, "| doing wait")
    command.kill()
    result = alone("down")
    assert "note: a `tfcluster launch` has started two" in result.stderr
    assert "after 30 s without contact" in result.stderr, "on one machine the spec's lease is too long"
    assert not alone.leftovers()


@pytest.mark.slow
def test_a_launch_that_takes_longer_than_its_lease_keeps_its_cluster(alone: Sandbox) -> None:
    """A command that is stopped reads nothing, and has its connection all the same."""
    (alone.folder / "sleep.py").write_text("import time\nprint('asleep', flush=True)\ntime.sleep(8)\n")
    command = alone.start("launch", "--workers", "1", "sleep.py", env=alone.with_settings({"LAUNCH_LEASE_SECONDS": 1}))
    read_until(command.stdout, "| asleep")
    command.send_signal(signal.SIGSTOP)
    wait_for(lambda: not programs(alone))
    command.send_signal(signal.SIGCONT)
    assert command.wait(60) == 0
    assert not alone.leftovers()


@pytest.mark.slow
def test_the_ports_of_members_are_closed_to_other_machines(cluster: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "listen.py"
    script.write_text(
        "import json, os, socket\n"
        "port = int(os.environ['TFCLUSTER_ADDRESS'].rpartition(':')[2])\n"
        "listener = socket.socket()\n"
        "listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "listener.bind(('', port))\n"
        "listener.listen()\n"
        "print(listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b'\\0').decode())\n"
    )
    result = cluster("launch", "--each", "worker", script)
    assert sorted(result.stdout.splitlines()) == ["worker:0 | lo", "worker:1 | lo"]


def test_a_daemon_of_a_member_becomes_a_child_of_the_process_that_started_the_member(cluster: Sandbox) -> None:
    """It reaps the daemon, and may restrict the daemon's sockets where only an ancestor may (Yama)."""
    (cluster.folder / "daemon.py").write_text(
        f"import os, time\nparent = os.getppid()\n{REAPED_DAEMON}print('reaped')\n"
    )
    assert cluster("launch", "--each", "chief", "daemon.py").stdout == "chief:0 | reaped\n"
