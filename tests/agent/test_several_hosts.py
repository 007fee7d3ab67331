"""What the agents of one cluster do on several hosts, each for its own part: two agents on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agent.hosts import PI, TASKS, Hosts, change, hosts_in, shorts, task_of, topology_of
from tests.conftest import make_sandbox, wait_for
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import DevicesReply, DevicesRequest, ReachRequest, RestartRequest, TopologyRequest
from tfcluster.protocol.api.runs import AttachRequest, CancelRequest
from tfcluster.protocol.serialization import decode, to_json

#: Longer than any test: something of it is ended.
EXPFIT = {"modes": ["data-parallel"], "steps": 10_000_000, "rate": 0.01, "batch": 16, "seed": 1}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, unchanged: None) -> Iterator[Hosts]:
    """A cluster on both hosts, shared by tests that leave it ready."""
    with make_sandbox(tmp_path_factory.mktemp("pair")) as sandbox, hosts_in(sandbox) as hosts:
        hosts.up(topology_of())
        yield hosts


def test_each_agent_reports_its_own_host(pair: Hosts) -> None:
    a, b = pair.status("a"), pair.status("b")
    assert (shorts(a), shorts(b)) == (["worker:0"], ["ps:0", "worker:1"])
    assert [host["host"] for host in a["hosts"] + b["hosts"]] == ["a", "b"]
    assert a["hosts"][0]["agent_pid"] != b["hosts"][0]["agent_pid"]
    assert a["hosts"][0]["tensorflow"] == b["hosts"][0]["tensorflow"] is not None
    devices = decode(DevicesReply, pair.ask("b", DevicesRequest())).devices
    assert {device.task for device in devices} == {"/job:ps/task:0", "/job:worker/task:1"}
    topology = json.loads(json.dumps(to_json(pair.topology)))
    # Other tests keep servers through a change.
    assert [{**pair.ask(host, TopologyRequest()), "kept": {}} for host in ("a", "b")] == [topology, topology]
    with pytest.raises(ClusterError, match="no task 'worker:1'"):
        pair.ask("a", RestartRequest(("worker:1",), 1.0))


def test_only_the_head_tasks_host_runs_a_fork_server(pair: Hosts) -> None:
    titles = wait_for(lambda: [title for title in pair.sandbox.processes().values() if "fork server" in title])
    assert len(titles) == 1
    assert not list(pair.state_folder("b").glob("logs/fork-server.log"))


@pytest.mark.slow
def test_a_run_computes_on_the_tasks_of_both_hosts(pair: Hosts) -> None:
    result = pair.result(pair.run("pi", PI))
    assert result["state"] == "succeeded", result
    assert {device.partition("/device")[0] for device in result["devices"]} == {
        "/job:worker/task:0",
        "/job:worker/task:1",
    }
    assert pair.status("a")["runs"]
    assert pair.status("b")["runs"] == []


@pytest.mark.slow
def test_a_run_fails_with_the_task_that_it_loses_on_another_host(pair: Hosts) -> None:
    """Its agent starts it again at once, so it is only by its server's number that the loss can be told."""
    run = pair.run("expfit", EXPFIT)
    while next(run).record["event"] != "progress":
        continue
    os.kill(pair.task("worker:1")["pid"], signal.SIGKILL)
    result = pair.result(run)
    assert result["state"] == "failed"
    address = pair.task("worker:1")["address"]
    message = result["error"]["message"]
    assert message.startswith(f"worker:1 at {address} on b "), message
    assert message.endswith(f" during {result['run']}")
    pair.wait_until_ready()
    assert pair.result(pair.run("pi", PI))["state"] == "succeeded", "the next run finds the new server"


LEAVE_A_VARIABLE = """
import sys
import tensorflow.compat.v1 as tf
from tfcluster.programs.api import current_run

tf.disable_eager_execution()
run = current_run()
with tf.container(sys.argv[1] or run.run), tf.device("/job:ps/task:0"):
    kept = tf.get_variable("kept", initializer=5.0)
with tf.Session(f"grpc://{run.head_address}") as session:
    if not sys.argv[1]:
        session.run(kept.initializer)
with tf.Session(f"grpc://{run.head_address}") as session:
    print("run", run.run)
    print("kept", bool(session.run(tf.is_variable_initialized(kept))))
"""


def test_the_variables_of_a_run_on_another_hosts_ps_are_cleared(pair: Hosts, tmp_path: Path) -> None:
    path = tmp_path / "leave.py"
    path.write_text(LEAVE_A_VARIABLE)

    def printed(container: str) -> dict[str, str]:
        _, run = pair.script(path, container)
        lines = [event.record for event in run]
        assert lines[-1]["state"] == "succeeded", lines
        output = "".join(line["data"] for line in lines if line["event"] == "output" and line["stream"] == "stdout")
        replies = [line.split() for line in output.splitlines()]
        return {words[0]: words[1] for words in replies if len(words) == 2}

    first = printed("")
    assert first["kept"] == "True", "it is there while the run goes on"
    assert printed(first["run"])["kept"] == "False"


def test_a_run_that_came_after_the_plan_is_not_lost_with_a_task_on_another_host(pair: Hosts) -> None:
    run = pair.run("expfit", EXPFIT)
    identity = next(run).record["run"]
    observed = pair.observe("a")
    assert observed is not None
    desired = replace(pair.topology, kept=dict(observed.generations))
    plan = replace(change(desired, observed), terminating=("/job:worker/task:1",), accepted_loss=())
    assert pair.ask("a", plan) == {"conflict": f"the plan would also cancel run {identity}"}
    assert pair.ask("a", replace(plan, accepted_loss=(f"run {identity}",))) == {"conflict": None}
    pair.release()
    pair.ask("a", CancelRequest(identity))
    assert pair.result(run)["state"] == "cancelled"


WAIT = """
import signal
print("waiting", flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_a_run_continues_when_its_command_disconnects(pair: Hosts, tmp_path: Path) -> None:
    path = tmp_path / "wait.py"
    path.write_text(WAIT)
    identity, run = pair.script(path, cancel_on_disconnect=False)
    run.close()
    again = pair.stream("a", AttachRequest(identity, 0, 0, cancel_on_disconnect=False))
    while next(again).record["event"] != "output":
        continue
    pair.kill_agent("a")
    again.close()
    again = pair.stream("a", AttachRequest(identity, 0, 0, cancel_on_disconnect=False))
    assert next(again).record["run"] == identity, "the next agent has it without another request"
    pair.ask("a", CancelRequest(identity))
    assert list(again)[-1].record["state"] == "cancelled"


def test_a_run_is_cancelled_on_disconnect_if_so_requested(pair: Hosts, tmp_path: Path) -> None:
    path = tmp_path / "wait.py"
    path.write_text(WAIT)
    identity, run = pair.script(path)
    run.close()
    again = pair.stream("a", AttachRequest(identity, 0, 0, cancel_on_disconnect=False))
    assert list(again)[-1].record["state"] == "cancelled"


def test_an_incomplete_upload_ends_a_run_that_is_not_cancelled_on_disconnect(pair: Hosts, tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"args": [], "path": "x.py", "argument": "x.py", "cwd": str(tmp_path), "seed": None}
    run = pair.run("script", parameters, upload="x.py", cancel_on_disconnect=False)
    identity = next(run).record["run"]
    run.close()
    again = pair.stream("a", AttachRequest(identity, 0, 0, cancel_on_disconnect=False))
    assert list(again)[-1].record["state"] == "cancelled"


@pytest.mark.slow
def test_an_agent_that_died_is_followed_by_one_that_has_its_own_tasks(pair: Hosts) -> None:
    before = {host: pair.status(host) for host in "ab"}
    pair.kill_agent("b")
    after = {host: pair.status(host) for host in "ab"}
    assert [task["pid"] for task in after["b"]["tasks"]] == [task["pid"] for task in before["b"]["tasks"]]
    assert after["b"]["hosts"][0]["agent_pid"] != before["b"]["hosts"][0]["agent_pid"]
    assert after["a"]["hosts"] == before["a"]["hosts"]
    pair.wait_until_ready()


def test_ports_of_other_hosts_are_not_reserved(pair: Hosts) -> None:
    replies = pair.prepare(topology_of([*TASKS, task_of("worker:2", "a")]))
    assert list(replies["a"]["allocation"]["ports"]) == ["/job:worker/task:2"]
    assert replies["b"]["allocation"]["ports"] == {}
    assert [each["observed"].generations.keys() for each in replies.values()] == [
        {"/job:worker/task:0"},
        {"/job:ps/task:0", "/job:worker/task:1"},
    ]


def test_a_failed_connection_is_reported_with_the_reason(pair: Hosts) -> None:
    address = pair.task("worker:1")["address"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{closed.getsockname()[1]}"
        replies = pair.ask("a", ReachRequest((address, silent, "[::1]:1"), 30.0))
    assert replies["failures"].keys() == {silent, "[::1]:1"}
    assert replies["failures"][silent] == "Connection refused"
    assert pair.ask("a", ReachRequest((), 1.0)) == {"failures": {}}
