"""What the agents of one cluster do on several hosts, each for its own part: two agents on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.agent.hosts import PI, TASKS, Hosts, change, shorts, topology_of
from tests.conftest import wait_for
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.api.cluster import DevicesReply, DevicesRequest, ReachRequest, RestartRequest, TopologyRequest
from tfcluster.protocol.api.runs import AttachRequest, CancelRequest
from tfcluster.protocol.serialization import decode, to_json

#: Longer than any test: something of it is ended.
EXPFIT = {"modes": ["data-parallel"], "steps": 10_000_000, "rate": 0.01, "batch": 16, "seed": 1}


SECRET = "hunter2-öß-9f3c7a"
WITH_SECRET = tuple(
    replace(task, env={"TOKEN": SECRET, "PLAIN": "seen"}, secrets=("TOKEN",)) if task.job == "worker" else task
    for task in TASKS
)


TOPOLOGY = topology_of(WITH_SECRET, warm=True)


def holders(folder: Path) -> list[str]:
    """The files in a folder that hold the secret, as it is or as JSON has it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if b"hunter2" in path.read_bytes())


def test_secret_values_are_in_one_private_file_and_nowhere_else(agents: Hosts) -> None:
    agents.ask("a", RestartRequest(("worker:0",), 1.0))
    agents.wait_until_ready()
    assert holders(agents.sandbox.folder / "state") == []
    runtime = agents.sandbox.folder / "run" / "tfcluster"
    secrets = sorted(runtime.glob("*.secrets"))
    assert holders(runtime) == [path.name for path in secrets]
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * 2
    told = json.dumps(
        [agents.status("a"), agents.status("b"), agents.events("a"), agents.events("b")], ensure_ascii=False
    )
    assert "hunter2" not in told
    for pid, name in product(agents.sandbox.processes(), ("cmdline", "environ", "comm")):
        with contextlib.suppress(OSError):  # it has just ended
            assert b"hunter2" not in Path(f"/proc/{pid}/{name}").read_bytes()
    for host in "ab":
        observed = agents.observe(host)
        assert observed is not None
        assert observed.topology.tasks[1].env["TOKEN"] == SECRET, "by which a change is seen"
    agents.release()


def test_each_agent_reports_its_own_host(agents: Hosts) -> None:
    a, b = agents.status("a"), agents.status("b")
    assert (shorts(a), shorts(b)) == (["worker:0"], ["ps:0", "worker:1"])
    assert [host["host"] for host in a["hosts"] + b["hosts"]] == ["a", "b"]
    assert a["hosts"][0]["agent_pid"] != b["hosts"][0]["agent_pid"]
    assert a["hosts"][0]["tensorflow"] == b["hosts"][0]["tensorflow"] is not None
    devices = decode(DevicesReply, agents.ask("b", DevicesRequest())).devices
    assert {device.task for device in devices} == {"/job:ps/task:0", "/job:worker/task:1"}
    topology = json.loads(json.dumps(to_json(agents.topology)))
    # Other tests keep servers through a change.
    assert [{**agents.ask(host, TopologyRequest()), "kept": {}} for host in ("a", "b")] == [topology, topology]
    with pytest.raises(ClusterError, match="no task 'worker:1'"):
        agents.ask("a", RestartRequest(("worker:1",), 1.0))
    wait_for(lambda: len(agents.sandbox.pids("fork server")) == 1)  # where runs start
    assert not list(agents.state_folder("b").glob("logs/fork-server.log"))


def test_servers_on_other_hosts_run_in_the_state_folder(agents: Hosts) -> None:
    for host, task in ("a", "worker:0"), ("b", "worker:1"):
        assert os.readlink(f"/proc/{agents.task(task)['pid']}/cwd") == str(agents.state_folder(host) / "files")


@pytest.mark.slow
def test_a_run_fails_with_the_task_that_it_loses_on_another_host(agents: Hosts) -> None:
    """Its agent starts it again at once, so it is only by its server's number that the loss can be told."""
    run = agents.run("expfit", EXPFIT)
    while next(run).record["event"] != "progress":
        continue
    os.kill(agents.task("worker:1")["pid"], signal.SIGKILL)
    result = agents.result(run)
    assert result["state"] == "failed"
    address = agents.task("worker:1")["address"]
    first, second = result["error"]["message"].splitlines()
    assert first.startswith(f"worker:1 at {address} on b ")
    assert second.startswith("after that, one of the tasks worker:0, worker:1, ps:0 was lost: ")
    agents.wait_until_ready()
    assert agents.result(agents.run("pi", PI))["state"] == "succeeded", "the next run finds the new server"


def test_a_run_that_came_after_the_plan_is_not_lost_with_a_task_on_another_host(agents: Hosts) -> None:
    run = agents.run("expfit", EXPFIT)
    identity = next(run).record["run"]
    observed = agents.observe("a")
    assert observed is not None
    desired = replace(agents.topology, kept=dict(observed.generations))
    plan = replace(change(desired, observed), terminating=("/job:worker/task:1",), accepted_loss=())
    assert agents.ask("a", plan) == {"conflict": f"the plan would also cancel run {identity}, if it uses these tasks"}
    assert agents.ask("a", replace(plan, accepted_loss=(f"run {identity}, if it uses these tasks",))) == {
        "conflict": None
    }
    agents.release()
    agents.ask("a", CancelRequest(identity))
    assert agents.result(run)["state"] == "cancelled"


def test_an_incomplete_upload_ends_a_run_that_is_not_cancelled_on_disconnect(agents: Hosts, tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"args": [], "path": "x.py", "argument": "x.py", "cwd": str(tmp_path), "seed": None}
    run = agents.run("script", parameters, upload="x.py", cancel_on_disconnect=False)
    identity = next(run).record["run"]
    run.close()
    again = agents.stream("a", AttachRequest(identity, 0, 0, cancel_on_disconnect=False))
    assert list(again)[-1].record["state"] == "cancelled"


def test_a_failed_connection_is_reported_with_the_reason(agents: Hosts) -> None:
    address = agents.task("worker:1")["address"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{closed.getsockname()[1]}"
        replies = agents.ask("a", ReachRequest((address, silent, "[::1]:1"), 30.0))
    assert replies["failures"].keys() == {silent, "[::1]:1"}
    assert replies["failures"][silent] == "Connection refused"
    assert agents.ask("a", ReachRequest((), 1.0)) == {"failures": {}, "sources": {}}


def can_connect(port: int) -> bool:
    with socket.socket() as dialling:
        return dialling.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_ports_stop_listening_however_the_request_ends(hosts: Hosts) -> None:
    prepared = hosts.prepare(topology_of())
    ports = prepared["b"]["allocation"]["ports"]
    listening = hosts.hold("b", topology_of().with_allocation(ports, {}), listens=True)
    next(listening)
    hosts.apply(prepared)  # while the request is still open
    listening.close()
    listening = hosts.hold("b", hosts.topology, listens=True)
    next(listening)
    listening.close()
    assert all(can_connect(port) for port in hosts.topology.ports_on("b")), "the servers listen themselves"
    hosts.down("b")
    hosts.down("a")
    listening = hosts.hold("b", topology_of(), listens=True)
    port = min(next(listening).allocation.ports.values())
    assert can_connect(port)
    agent = ProcessHandle.from_pid(hosts.sandbox.recorded_agent("b"))
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    wait_for(lambda: not agent.is_alive())
    wait_for(lambda: not can_connect(port))  # its child, which answers there, ends after it
    listening.close()
    hosts.release()
    hosts.events("b")  # has the next agent tidy up
