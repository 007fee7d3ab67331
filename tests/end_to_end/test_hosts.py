"""The commands over several hosts. This machine plays two of them: see tests/played.py. The hosts are real, the
way to them is not; tests with ssh are elsewhere."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.conftest import PLAYED, Sandbox, lines_of, read_until, wait_for
from tests.played import Played
from tfcluster.client import cluster as cluster_module
from tfcluster.client.preflight.preflight import close_inspectors
from tfcluster.client.up import PlanConflictError, UpPlan, apply, plan_up
from tfcluster.core.topology import ClusterTopology
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.serialization import decode

_HOSTS = "hosts:\n  alpha: {address: 127.0.0.2}\n  beta: {address: 127.0.0.3}\n"
_SPEC = f"name: two\n{_HOSTS}jobs:\n  ps: {{tasks: 1, hosts: [alpha]}}\n  worker: {{tasks: 2, hosts: [alpha, beta]}}\n"
_TASKS = {"ps:0": "alpha", "worker:0": "alpha", "worker:1": "beta"}

# Says where it is, and goes on when a file is there.
_SCRIPT = """
import os, sys, time
print("first", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("second", flush=True)
"""


CLUSTER = Cluster(_SPEC, is_played=True)


@pytest.fixture
def apart(sandbox: Sandbox) -> Sandbox:
    """A sandbox with played hosts and no cluster."""
    sandbox.command = PLAYED
    return sandbox


@pytest.fixture
def cluster(cluster: Sandbox) -> Iterator[Sandbox]:
    """A ps and a worker on alpha, which leads, and a worker on beta; left as it was."""
    yield cluster
    cluster.spec(_SPEC)
    for host in ("alpha", "beta"):
        (cluster.folder / "away" / host).unlink(missing_ok=True)


@contextlib.contextmanager
def away(sandbox: Sandbox, host: str) -> Iterator[None]:
    """A host cannot be reached, and connections to it are lost."""
    path = sandbox.folder / "away" / host
    path.parent.mkdir(exist_ok=True)
    path.touch()
    try:
        yield
    finally:
        path.unlink()


def book(sandbox: Sandbox, cluster: str = "two") -> list[str]:
    path = sandbox.folder / "state" / "tfcluster" / cluster / "hosts.json"
    return [host["name"] for host in json.loads(path.read_text())["hosts"]] if path.exists() else []


def test_the_status_is_that_of_all_hosts_in_the_order_of_the_spec(cluster: Sandbox) -> None:
    status = cluster.status()
    assert status["state"] == "running"
    assert [(host["host"], host["state"]) for host in status["hosts"]] == [("alpha", "up"), ("beta", "up")]
    assert [(task["name"], task["host"]) for task in status["tasks"]] == [*_TASKS.items()]
    assert "beta" in cluster("status").stdout
    path = cluster.folder / "state" / "tfcluster" / "two" / "hosts.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert book(cluster) == ["alpha", "beta"]


def test_an_unreachable_host_is_reported_and_the_others_are_shown(cluster: Sandbox) -> None:
    with away(cluster, "beta"):
        found = cluster("status", "-o", "json", code=5)
        shown = cluster("status", code=5)
    status = json.loads(found.stdout)
    assert [(host["host"], host["state"]) for host in status["hosts"]] == [("alpha", "up"), ("beta", "unreachable")]
    assert {task["name"]: (task["state"], task["pid"] is None) for task in status["tasks"]} == {
        "ps:0": ("ready", False),
        "worker:0": ("ready", False),
        "worker:1": ("unresponsive", True),
    }
    assert "error: host 'beta' cannot be reached: connection timed out" in found.stderr.splitlines()
    assert "unresponsive" in shown.stdout
    assert "beta is unreachable" in shown.stdout.splitlines()
    assert cluster.status()["state"] == "running"


def test_each_host_searches_its_own_logs(cluster: Sandbox) -> None:
    lines = lines_of(
        cluster("logs", "w*", "--grep", "Started [s]erver", "--grep", "nothing", "-n", "1", "-o", "json").stdout
    )
    assert sorted(line["task"] for line in lines) == ["worker:0", "worker:1"]


def test_devices_are_those_of_all_reachable_hosts(cluster: Sandbox) -> None:
    assert {device["task"] for device in cluster.json("devices")} == {
        "/job:ps/task:0",
        "/job:worker/task:0",
        "/job:worker/task:1",
    }
    assert cluster("devices").stdout.split()[:2] == ["DEVICE", "HOST"]
    with away(cluster, "beta"):
        result = cluster("devices", "-o", "json", code=5)
    assert {device["task"] for device in json.loads(result.stdout)} == {"/job:ps/task:0", "/job:worker/task:0"}
    assert "beta" in result.stderr


@pytest.mark.slow
def test_logs_and_events_are_in_the_order_of_their_time(cluster: Sandbox) -> None:
    for command in ("logs", "events"):
        lines = cluster.json_lines(command)
        assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
        assert {line["task"] for line in lines} >= set(_TASKS)
    assert {event["host"] for event in lines} == {"alpha", "beta"}
    last = cluster.json_lines("events", "-n", "3")
    assert len(last) == 3
    assert [event for event in cluster.json_lines("events") if event in last] == last


@pytest.mark.slow
def test_the_log_of_a_task_is_asked_of_its_host_alone(cluster: Sandbox) -> None:
    with away(cluster, "beta"):
        assert {line["task"] for line in cluster.json_lines("logs", "ps", "worker:0")} == {
            "ps:0",
            "worker:0",
        }
        lost = cluster("logs", "-n", "1", "-o", "json", code=5)
    assert {line["task"] for line in lines_of(lost.stdout)} == {"ps:0", "worker:0"}
    assert "no task or run 'chief'" in cluster("logs", "worker:1", "chief", code=2).stderr


def test_ctrl_c_cancels_a_run_on_another_host(cluster: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "wait.py"
    script.write_text(_SCRIPT)
    run = cluster.start("run", "-o", "json", script, tmp_path / "never")
    read_until(run.stdout, '"first"')
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert lines_of(output)[-1]["state"] == "cancelled"


@pytest.mark.slow
def test_a_run_that_cannot_be_cancelled_is_reported_to_continue(cluster: Sandbox, tmp_path: Path) -> None:
    script, gate = tmp_path / "wait.py", tmp_path / "gate"
    script.write_text(_SCRIPT)
    run = cluster.start("run", "-o", "json", script, gate)
    name = lines_of(read_until(run.stdout, '"event": "run"')[-1])[0]["run"]
    read_until(run.stdout, '"first"')
    with away(cluster, "alpha"):
        read_until(run.stderr, "trying again")
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 5
        assert f"error: run {name} continues: host 'alpha' cannot be reached" in errors
    assert [each["state"] for each in cluster.json("runs") if each["run"] == name] == ["running"]
    cluster("cancel", name)
    assert lines_of(cluster("attach", name, "-o", "json", code=1).stdout)[-1]["state"] == "cancelled"


@pytest.mark.slow
def test_following_loses_and_repeats_nothing_when_a_host_was_unreachable(cluster: Sandbox) -> None:
    before = len(cluster.json_lines("logs"))
    follower = cluster.start("logs", "-f", "-o", "json")
    followed = [follower.stdout.readline() for _ in range(before)]
    with away(cluster, "beta"):
        read_until(follower.stderr, "beta: connection lost, trying again")
        cluster("restart", "worker:0", "--yes")  # what the other host tells comes all the same
        followed += [f"{line}\n" for line in read_until(follower.stdout, "worker:0")]
    read_until(follower.stderr, "beta: connected again")
    cluster("restart", "worker:1")
    while not ("worker:1" in followed[-1] and "Started server" in followed[-1]):
        followed.append(follower.stdout.readline())
        assert followed[-1], "it follows until it is interrupted"
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=60)
    told, shown = cluster.json_lines("logs"), lines_of("".join(followed))
    for task in _TASKS:
        seen = [line["line"] for line in shown if line["task"] == task]
        assert seen == [line["line"] for line in told if line["task"] == task][: len(seen)]


@pytest.mark.slow
def test_tasks_are_restarted_where_they_are(cluster: Sandbox) -> None:
    before = cluster.tasks("pid")
    assert "2 tasks restarted" in cluster("restart", "worker", "--rolling").stdout
    between = cluster.tasks("pid")
    assert {name for name in _TASKS if before[name] != between[name]} == {"worker:0", "worker:1"}
    cluster("restart", "--yes")
    after = cluster.tasks("pid")
    assert {name for name in _TASKS if between[name] != after[name]} == set(_TASKS)
    with away(cluster, "beta"):
        assert "beta" in cluster("restart", "worker:1", code=5).stderr
        cluster("restart", "worker:0")


@pytest.mark.slow
def test_jobs_are_scaled_over_the_hosts_and_a_second_up_goes_back(cluster: Sandbox) -> None:
    cluster("scale", "worker=3", "--yes")
    assert cluster.tasks("host") == {**_TASKS, "worker:2": "alpha"}
    cluster("up", "--yes")
    assert cluster.tasks("host") == _TASKS
    assert cluster("up").stdout.splitlines()[-1].startswith("two is up already")
    with away(cluster, "beta"):
        assert "beta" in cluster("scale", "worker=3", "--yes").stderr, "the other hosts do what they can"
    cluster("up", "--yes")
    assert cluster.tasks("host") == _TASKS


@pytest.mark.slow
def test_another_folder_of_the_program_of_connect_is_no_other_place(apart: Sandbox) -> None:
    by = _SPEC.replace("address: 127.0.0.3", "address: 127.0.0.3, connect: /usr/bin/enter beta")
    apart("up", apart.spec(by))
    pids = apart.tasks("pid")
    apart("up", apart.spec(by.replace("/usr/bin/", "")))
    assert apart.tasks("pid") == pids
    assert apart("up").stdout.startswith("two is up already")


@pytest.mark.slow
def test_down_stops_what_it_can_and_the_next_one_does_the_rest(apart: Sandbox) -> None:
    apart("up", apart.spec(_SPEC))
    left = apart.task("worker:1")["pid"]
    with away(apart, "beta"):
        result = apart("down", code=5)
        assert "these tasks may still be running there: worker:1 on beta" in result.stderr
        assert "tfcluster down -c two" in result.stderr
        assert book(apart) == ["beta"]
        assert apart("status", code=5).stdout == ""
        again = apart("down", code=5).stderr
        assert "its processes there may still be running" in again
        assert "tfcluster down -c two" in again
    status = apart.status(code=4)
    assert [(host["host"], host["state"]) for host in status["hosts"]] == [("alpha", "down"), ("beta", "up")]
    assert [(task["name"], task["state"]) for task in status["tasks"]] == [
        ("ps:0", "stopped"),
        ("worker:0", "stopped"),
        ("worker:1", "ready"),
    ]
    assert apart.task("worker:1", code=4)["pid"] == left
    assert apart.json("down") == {"cluster": "two", "state": "stopped"}
    wait_for(lambda: not apart.leftovers())
    assert "is not running" in apart("status", code=3).stderr
    assert {line["task"] for line in apart.json_lines("logs", "worker")} == {"worker:0", "worker:1"}


def test_the_doctor_changes_nothing_and_up_with_an_unreachable_host_starts_nothing(apart: Sandbox) -> None:
    apart.spec(_SPEC)
    checks = apart.json("doctor")["checks"]
    assert {(check["host"], check["check"]) for check in checks} >= {
        (host, check) for host in ("alpha", "beta") for check in ("reach", "host", "clock", "tasks", "network")
    }
    assert all(check["ok"] for check in checks)
    wait_for(lambda: not apart.leftovers())
    with away(apart, "beta"):
        assert "host 'beta' cannot be reached" in apart("up", code=5).stderr
    wait_for(lambda: not apart.leftovers())
    assert apart("status", code=3).stdout == ""


@pytest.mark.slow
def test_two_ups_at_once_leave_one_cluster(apart: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(apart.spec(_SPEC))
    wanted = decode(ClusterTopology, apart.json("validate"))
    for name, value in apart.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cluster_module, "make_transport", Played)
    one, other = (plan_up(wanted, source, dry=False) for _ in range(2))
    assert one.topology.ports_on("beta") != other.topology.ports_on("beta"), "what one has chosen is held"

    def carry_out(plan: UpPlan) -> None:
        apply(plan, accept_any_loss=False, show_status=lambda status: None)

    carry_out(replace(one, hosts={"alpha": one.hosts["alpha"]}))
    close_inspectors(one.hosts)
    with pytest.raises(PlanConflictError, match="nothing was done"):
        carry_out(other)
    carry_out(plan_up(wanted, source, dry=False))
    topologies = [other.cluster.connect(host).call(TopologyRequest()) for host in ("alpha", "beta")]
    assert topologies[0] == topologies[1]
    assert topologies[0].addresses()["worker"][:1] == one.topology.addresses()["worker"][:1]


# Waits for a file before it checks whether the hosts can connect to each other.
_LATE = """
def _wait(*arguments, check=check_connectivity):
    import pathlib
    path = pathlib.Path({path!r})
    path.with_suffix(".reached").touch()
    while not path.exists():
        time.sleep(0.01)
    return check(*arguments)
check_connectivity = _wait
"""


def test_a_check_that_another_up_overtakes_is_made_again(apart: Sandbox) -> None:
    apart.spec(_SPEC)
    path = apart.folder / "go"
    late = apart.with_fault("tfcluster.client.preflight.preflight", _LATE.format(path=str(path)))
    overtaken = apart.start("up", env=late)
    wait_for(path.with_suffix(".reached").exists)
    apart("up")  # its servers take the ports on which agents have answered the checks
    path.touch()
    output, errors = overtaken.communicate(timeout=120)
    assert overtaken.returncode == 0, (output, errors)
    assert "firewall" not in output + errors
    assert "two is up already" in output


def test_a_command_that_is_interrupted_while_it_follows_ends_at_once(cluster: Sandbox) -> None:
    with away(cluster, "beta"):
        follower = cluster.start("logs", "-f")
        read_until(follower.stderr, "trying again")
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=60)
    assert follower.returncode == 130


@pytest.mark.slow
def test_a_host_that_the_spec_no_longer_has_is_released(cluster: Sandbox) -> None:
    cluster("up", cluster.spec(_SPEC), "--yes")
    cluster.spec(_SPEC.replace("tasks: 2, hosts: [alpha, beta]", "tasks: 2, hosts: [alpha]"))
    cluster("up", "--yes")
    assert book(cluster) == ["alpha"]
    assert {task["host"] for task in cluster.status()["tasks"]} == {"alpha"}
    assert not [line for line in cluster.processes().values() if "on beta" in line]
    cluster.spec(_SPEC)
    with away(cluster, "beta"):
        assert "host 'beta' cannot be reached" in cluster("up", "--yes", code=5).stderr
    cluster("up", "--yes")
    assert cluster.tasks("host") == _TASKS


@pytest.mark.slow
def test_commands_fail_when_no_host_can_be_reached(cluster: Sandbox) -> None:
    with away(cluster, "alpha"), away(cluster, "beta"):
        for command in ("status", "devices", "events", "logs"):
            result = cluster(command, code=5)
            assert "host 'alpha' cannot be reached" in result.stderr
            assert "host 'beta' cannot be reached" in result.stderr or command == "devices"
        metrics = cluster("metrics", code=5).stdout
    assert re.findall(r"^tfcluster_host_up{.*} (\d)$", metrics, re.MULTILINE) == ["0", "0"]
    assert book(cluster) == ["alpha", "beta"]
    metrics = cluster("metrics", "-c", "none", code=3).stdout
    assert re.search(r'^tfcluster_cluster_state{cluster="none",state="stopped"} 1$', metrics, re.MULTILINE)
