"""`tfcluster sweep`: trials with different parameters, each a process, as many at a time as there are places."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.clusters import Cluster
from tests.conftest import SCRIPTS, Sandbox, lines_of, read_until, wait_for

SPEC = "jobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"
TRIAL = (SCRIPTS / "trial.py").read_text()
WAIT = ("trial.py", "--act={0,wait,wait}")


CLUSTER = Cluster(SPEC, files={"trial.py": TRIAL})


def sweep(cluster: Sandbox, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The events of a sweep."""
    return lines_of(cluster("sweep", "-o", "json", *arguments, code=code).stdout)


def printed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What each trial has printed, by its name."""
    return {each["task"]: json.loads(each["line"]) for each in events if each["event"] == "output"}


def most_at_a_time(events: list[dict[str, Any]]) -> int:
    """How many trials have run at the same time."""
    running: set[int] = set()
    most = 0
    for event in events:
        if event["event"] == "trial":
            (running.add if event["state"] == "running" else running.discard)(event["trial"])
            most = max(most, len(running))
    return most


def programs(sandbox: Sandbox) -> list[int]:
    """The trials that run."""
    return sandbox.pids(" program")


def test_each_trial_is_a_process_with_its_parameters(cluster: Sandbox) -> None:
    arguments = ("trial.py", "--lr={0.3,0.1,0.2}", "--batch={32,64}", "--best", "loss", "--at-a-time", "1")
    events = sweep(cluster, *arguments)
    seen = printed(events)
    assert [seen[f"trial:{number}"]["args"] for number in (0, 1, 5)] == [
        ["--lr=0.3", "--batch=32"],
        ["--lr=0.3", "--batch=64"],
        ["--lr=0.2", "--batch=64"],
    ]
    one = seen["trial:5"]
    assert json.loads(one["TF_CONFIG"]) == {"cluster": {}, "task": {"type": "worker", "index": 0}}
    own = {"TASK": "trial:5", "TRIAL": "5", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "ATTEMPT": "0"}
    assert {name: one[f"TFCLUSTER_{name}"] for name in own} == own
    assert "TFCLUSTER_MASTER" not in one
    assert most_at_a_time(events) == 2, "one on each worker, and none on ps"
    (result,) = [each for each in events if each["event"] == "result"]
    assert result == events[-1]
    assert result["state"] == "succeeded"
    trials = result["result"].pop("trials")
    assert result["result"] == {}
    assert [each.pop("seconds") > 0 for each in trials] == [True] * 6
    assert trials == [
        {
            "trial": number,
            "parameters": {"lr": lr, "batch": batch},
            "state": "succeeded",
            "metrics": {"loss": 2 * lr},
            "host": "localhost",
        }
        for number, lr, batch in [(2, 0.1, 32), (3, 0.1, 64), (4, 0.2, 32), (5, 0.2, 64), (0, 0.3, 32), (1, 0.3, 64)]
    ]
    done = [each["done"] for each in events if each["event"] == "progress"]
    assert done == list(range(7))
    fetched = cluster("fetch", result["run"], "fetched")
    assert fetched.stdout.startswith("6 files")
    assert (cluster.folder / "fetched" / "trial-2" / "model").read_text() == "0.1"


def test_trials_run_at_the_same_time_on_a_task(cluster: Sandbox, tmp_path: Path) -> None:
    events = sweep(cluster, "--at-a-time", "2", "trial.py", "--x={1..5}", f"--meet={tmp_path}:4")
    assert most_at_a_time(events) == 4


def test_a_trial_that_fails_is_recorded_and_the_others_run(cluster: Sandbox) -> None:
    arguments = ("trial.py", "--lr=1", "--act={raise,0,3}")
    result = cluster("sweep", *arguments)
    assert "trial:0 (act=raise) failed: ValueError: no such data" in result.stderr
    assert "trial:2 (act=3) failed: ended with exit code 3" in result.stderr
    table = [line.split()[:4] for line in result.stdout.splitlines() if line.split()[0].isdigit()]
    assert table == [["1", "0", "succeeded", "2"], ["0", "raise", "failed", "2"], ["2", "3", "failed", "2"]]
    assert "2 trials failed; the first: trial:" in result.stdout
    run = cluster.json("runs")[-1]
    assert run["state"] == "succeeded"
    assert [each["state"] for each in run["result"]["trials"]] == ["succeeded", "failed", "failed"]
    assert "1 of 3 trials succeeded; trial:1: act=0 loss=2" in cluster("runs", "-n", "1").stdout
    assert cluster("runs", run["run"]).stdout.splitlines()[-3].split()[:3] == ["1", "0", "succeeded"]


def test_a_sweep_fails_if_no_trial_succeeds(cluster: Sandbox) -> None:
    events = sweep(cluster, "trial.py", "--act={raise,3}", code=1)
    result = events[-1]
    assert result["state"] == "failed"
    assert result["error"]["message"].startswith("no trial has succeeded: trial:")
    assert [each["state"] for each in result["result"]["trials"]] == ["failed", "failed"]


def test_no_other_trial_starts_when_too_many_have_failed(cluster: Sandbox) -> None:
    events = sweep(cluster, "--max-failures", "1", "--on", "ps", "trial.py", "--act={0,1,2,3,0}")
    result = events[-1]
    states = {each["trial"]: each["state"] for each in result["result"]["trials"]}
    assert states == {0: "succeeded", 1: "failed", 2: "failed", 3: "pending", 4: "pending"}
    assert [each["trial"] for each in result["result"]["trials"]] == [0, 3, 4, 1, 2]
    assert "2 trials not started: --max-failures 1" in result["notes"]
    assert result["result"]["trials"][1] == {
        "trial": 3,
        "parameters": {"act": 3},
        "state": "pending",
        "metrics": {},
        "host": None,
        "seconds": None,
    }


def test_the_trials_that_have_not_succeeded_run_again(cluster: Sandbox) -> None:
    go_on = cluster.folder / "go_on"
    has_to_succeed = f"os.path.exists({str(go_on)!r}) or sys.argv[1] == '1'"
    cluster.spec(f"import os, sys\nsys.exit(0 if {has_to_succeed} else 3)\n", "go.py")
    run = sweep(cluster, "--at-a-time", "2", "go.py", "{1..4}", "{a,b}")[-1]["run"]
    go_on.touch()
    again = cluster.json("rerun", "--failed", run)
    assert [each["parameters"]["argument-1"] for each in again["result"]["trials"]] == [2, 2, 3, 3, 4, 4]
    assert "all trials of " in cluster("rerun", "--failed", again["run"], code=2).stderr
    assert len(cluster.json("rerun", run)["result"]["trials"]) == 8
    go_on.unlink()
    cluster("run", "go.py", "1")
    script = cluster.json("runs")[-1]["run"]
    assert f"{script} is not a sweep" in cluster("rerun", "--failed", script, code=2).stderr


def test_a_metric_of_a_series_is_named_after_it(cluster: Sandbox) -> None:
    arguments = ("--on", "ps", "--best", "max:validation/loss", "trial.py", "--lr={1,2}", "--series=validation")
    result = sweep(cluster, *arguments)[-1]
    assert [each["metrics"] for each in result["result"]["trials"]] == [
        {"validation/loss": 4.0},
        {"validation/loss": 2.0},
    ]
    lines = cluster("runs", "--csv", result["run"]).stdout.splitlines()
    assert [line.rpartition(",")[0] for line in lines] == [
        "trial,lr,state,validation/loss,host",
        "1,2,succeeded,4.0,localhost",
        "0,1,succeeded,2.0,localhost",
    ]


def test_a_file_names_the_trials(cluster: Sandbox) -> None:
    (cluster.folder / "params.csv").write_text("lr,name\n0.1,small\n0.2,large\n")
    arguments = ("--from", "params.csv", "--best", "max:loss", "trial.py", "--lr={lr}", "--batch={1,2}")
    trials = sweep(cluster, *arguments)[-1]["result"]["trials"]
    assert [each["parameters"] for each in trials] == [
        {"lr": lr, "name": name, "batch": batch} for lr, name in ((0.2, "large"), (0.1, "small")) for batch in (1, 2)
    ]


def test_the_job_of_the_trials_must_exist(cluster: Sandbox) -> None:
    error = cluster("sweep", "--on", "master", "trial.py", "{1,2}", code=2).stderr
    assert "the cluster has no job 'master'\nhint: Choose with --on from: ps, worker." in error


def test_options_of_the_script_come_after_two_hyphens(cluster: Sandbox) -> None:
    seen = printed(sweep(cluster, "trial.py", "--x={1,2}", "--at-a-time=2", "--", "--best=x"))
    assert [each["args"] for _, each in sorted(seen.items())] == [
        ["--x=1", "--", "--best=x"],
        ["--x=2", "--", "--best=x"],
    ]


def test_an_interrupt_ends_all_and_the_trials_are_recorded(cluster: Sandbox) -> None:
    command = cluster.start("sweep", "--on", "ps", *WAIT)
    read_until(command.stdout, "act=wait")
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    assert not programs(cluster)
    run = cluster.json("runs")[-1]
    assert run["state"] == "cancelled"
    assert [each["state"] for each in run["result"]["trials"]] == ["succeeded", "pending", "cancelled"]


def test_a_sweep_is_a_run_like_any_other(cluster: Sandbox) -> None:
    run = cluster("sweep", "--detach", *WAIT).stdout.strip()
    assert run.startswith("trial-py-") or run.startswith("trial-")
    wait_for(lambda: cluster("logs", run).stdout.count("act=wait") == 2)
    (status,) = [each for each in cluster.status()["runs"] if each["run"] == run]
    assert status["state"] == "running"
    members = {each["task"]: (each["host"], each["pid"]) for each in status["members"]}
    assert sorted(members) == ["trial:1", "trial:2"], "those that run"
    assert {host for host, _ in members.values()} == {"localhost"}
    assert sorted(pid for _, pid in members.values()) == sorted(programs(cluster))
    assert cluster("stack", run).stdout.count("trial.py") >= 2
    cluster("cancel", run)
    attached = lines_of(cluster("attach", run, "-o", "json", code=1).stdout)
    assert len(printed(attached)) == 3
    assert attached[-1]["state"] == "cancelled"
    assert [each["state"] for each in attached[-1]["result"]["trials"]] == ["succeeded", "cancelled", "cancelled"]
    assert not programs(cluster)


def test_a_sweep_here_ends_with_a_command_that_is_killed(cluster: Sandbox) -> None:
    command = cluster.start("sweep", *WAIT)
    assert len([read_until(command.stdout, "act=wait") for _ in range(2)]) == 2
    command.kill()
    run = cluster.json("runs")[-1]["run"]
    cluster("wait", run, code=1)
    assert not programs(cluster)


def test_a_sweep_outlives_its_agent(cluster: Sandbox) -> None:
    command = cluster.start("sweep", "-o", "json", "--on", "ps", "trial.py", "--act={wait,0,0}", "--best", "loss")
    read_until(command.stdout, "act=wait")
    cluster.kill_agent()
    os.kill(programs(cluster)[0], signal.SIGKILL)
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 0
    result = lines_of(output)[-1]
    assert [each["state"] for each in result["result"]["trials"]] == ["succeeded", "succeeded", "failed"]
    assert "no trial has reported the metric 'loss'" in result["notes"]
    cluster.wait_until("running")


def test_a_sweep_fails_if_the_process_that_starts_its_trials_dies(cluster: Sandbox) -> None:
    command = cluster.start("sweep", "-o", "json", "--on", "ps", "trial.py", "--x={1,2}", "--act=wait")
    read_until(command.stdout, "x=1")
    (host,) = cluster.pids(" host")
    os.kill(host, signal.SIGKILL)
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 1
    result = lines_of(output)[-1]
    assert result["error"]["message"] == "no trial has succeeded: no host is left"
    assert [each["state"] for each in result["result"]["trials"]] == ["pending", "pending"]
    assert not programs(cluster)


def test_what_a_sweep_has_done_is_known_after_its_driver_was_killed(cluster: Sandbox) -> None:
    command = cluster.start("sweep", "-o", "json", "--on", "ps", "trial.py", "--act={0,wait}")
    events = lines_of("\n".join(read_until(command.stdout, "act=wait")))
    run = events[0]["run"]
    (driver,) = [pid for pid, title in cluster.processes().items() if title.endswith(run)]
    os.kill(driver, signal.SIGKILL)
    assert command.wait(60) == 1
    rows = cluster("runs", "--csv", run).stdout.splitlines()
    assert [row.split(",")[:3] for row in rows] == [
        ["trial", "act", "state"],
        ["0", "0", "succeeded"],
        ["1", "wait", "running"],
    ]
    again = cluster("rerun", "--failed", "--detach", run).stdout.strip()
    assert [each["act"] for each in cluster.json("runs", again)["origin"]["sweep"]["trials"]] == ["wait"]
    cluster("cancel", again)
