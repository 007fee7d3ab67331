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

from tests.agent.hosts import TASKS, Hosts, hosts_in, layout_of, task_of
from tests.conftest import Sandbox, _make, wait_for
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.messages import Call

PI = {"samples": 1_000_000, "seed": 7}
#: Longer than any test: something of it is ended.
EXPFIT = {"modes": ["data-parallel"], "steps": 10_000_000, "rate": 0.01, "batch": 16, "seed": 1}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A cluster on both hosts, shared by tests that leave it ready."""
    for sandbox in _make(tmp_path_factory.mktemp("pair")):
        with hosts_in(sandbox) as hosts:
            hosts.up(layout_of())
            yield hosts


@pytest.fixture
def hosts(sandbox: Sandbox) -> Iterator[Hosts]:
    """Both hosts, with nothing up."""
    with hosts_in(sandbox) as found:
        yield found


def shorts(status: Any) -> list[str]:
    return [f"{task['job']}:{task['index']}" for task in status["tasks"]]


def test_each_agent_tells_of_its_own_host(pair: Hosts) -> None:
    a, b = pair.status("a"), pair.status("b")
    assert (shorts(a), shorts(b)) == (["worker:0"], ["ps:0", "worker:1"])
    assert [host["host"] for host in a["hosts"] + b["hosts"]] == ["a", "b"]
    assert a["hosts"][0]["agent_pid"] != b["hosts"][0]["agent_pid"]
    assert a["hosts"][0]["tensorflow"] == b["hosts"][0]["tensorflow"] is not None
    devices = pair.ask("b", Call.DEVICES)["devices"]
    assert {device["task"] for device in devices} == {"/job:ps/task:0", "/job:worker/task:1"}
    assert pair.ask("a", Call.LAYOUT) == pair.ask("b", Call.LAYOUT) == json.loads(json.dumps(pair.layout.to_json()))
    with pytest.raises(ClusterError, match="no task 'worker:1'"):
        pair.ask("a", Call.RESTART, tasks=["worker:1"], grace=1.0)


def test_only_the_heads_host_keeps_an_interpreter_warm(pair: Hosts) -> None:
    titles = wait_for(lambda: [title for title in pair.sandbox.processes().values() if "interpreter" in title])
    assert len(titles) == 1
    assert not list(pair.state_folder("b").glob("logs/interpreter.log"))


def test_a_run_computes_on_the_tasks_of_both_hosts(pair: Hosts) -> None:
    result = pair.result(pair.run("pi", PI))
    assert result["state"] == "succeeded", result
    assert {device.partition("/device")[0] for device in result["devices"]} == {
        "/job:worker/task:0",
        "/job:worker/task:1",
    }
    assert pair.status("a")["runs"]
    assert pair.status("b")["runs"] == []


def test_a_run_fails_with_the_task_that_it_loses_on_another_host(pair: Hosts) -> None:
    """Its agent starts it again at once, so it is only by its server's number that the loss can be told."""
    run = pair.run("expfit", EXPFIT)
    while next(run)["event"] != "progress":
        continue
    os.kill(pair.task("worker:1")["pid"], signal.SIGKILL)
    result = pair.result(run)
    assert result["state"] == "failed"
    address = pair.task("worker:1")["address"]
    said = result["error"]["message"]
    assert said.startswith(f"worker:1 at {address} on b "), said
    assert said.endswith(f" during {result['run']}")
    pair.wait_until_ready()
    assert pair.result(pair.run("pi", PI))["state"] == "succeeded", "the next run finds the new server"


LEAVE_A_VARIABLE = """
import sys
import tensorflow.compat.v1 as tf
from tfcluster.programs.context import this_run

tf.disable_eager_execution()
run = this_run()
with tf.container(sys.argv[1] or run.run), tf.device("/job:ps/task:0"):
    kept = tf.get_variable("kept", initializer=5.0)
with tf.Session(f"grpc://{run.head}") as session:
    if not sys.argv[1]:
        session.run(kept.initializer)
with tf.Session(f"grpc://{run.head}") as session:
    print("run", run.run)
    print("kept", bool(session.run(tf.is_variable_initialized(kept))))
"""


def test_what_a_run_leaves_on_another_hosts_ps_is_cleared(pair: Hosts, tmp_path: Path) -> None:
    path = tmp_path / "leave.py"
    path.write_text(LEAVE_A_VARIABLE)

    def printed(container: str) -> dict[str, str]:
        parameters = {"args": [container], "path": str(path), "cwd": str(tmp_path), "seed": None}
        run = pair.run("script", parameters, sent=path.name)
        lines = [next(run)]
        with path.open("rb") as file:
            run.send_file(file)
        lines += list(run)
        assert lines[-1]["state"] == "succeeded", lines
        told = [line["line"].split() for line in lines if line["event"] == "output"]
        return {words[0]: words[1] for words in told if len(words) == 2}

    first = printed("")
    assert first["kept"] == "True", "it is there while the run goes on"
    assert printed(first["run"])["kept"] == "False"


def test_a_run_that_came_after_the_plan_is_not_lost_with_a_task_on_another_host(pair: Hosts) -> None:
    run = pair.run("expfit", EXPFIT)
    identity = next(run)["run"]
    layout = pair.layout.to_json()
    plan: dict[str, Any] = {"wanted": layout, "base": layout, "layout": layout, "lost": []}
    with pytest.raises(ClusterError, match=f"which would lose run {identity}: nothing was done"):
        pair.ask("a", Call.APPLY, **plan, ends=["/job:worker/task:1"])
    pair.ask("a", Call.APPLY, **{**plan, "lost": [f"run {identity}"]}, ends=["/job:worker/task:1"])
    pair.ask("a", Call.CANCEL, run=identity)
    assert pair.result(run)["state"] == "cancelled"


def test_a_run_that_is_not_owned_goes_on_when_its_command_goes_away(pair: Hosts) -> None:
    run = pair.run("expfit", EXPFIT, owned=False)
    identity = next(run)["run"]
    run.close()
    again = pair.stream("a", Call.ATTACH, run=identity, events=0, output=0, owned=False)
    while next(again)["event"] != "progress":
        continue
    pair.kill_agent("a")
    again.close()
    again = pair.stream("a", Call.ATTACH, run=identity, events=0, output=0, owned=False)
    assert next(again)["run"] == identity, "the next agent has it, and nobody needs to come back for it"
    pair.ask("a", Call.CANCEL, run=identity)
    assert list(again)[-1]["state"] == "cancelled"


def test_a_run_that_is_owned_is_cancelled_when_its_command_goes_away(pair: Hosts) -> None:
    run = pair.run("expfit", EXPFIT)
    identity = next(run)["run"]
    run.close()
    again = pair.stream("a", Call.ATTACH, run=identity, events=0, output=0, owned=False)
    assert list(again)[-1]["state"] == "cancelled"


def test_a_file_that_did_not_come_whole_ends_also_a_run_that_is_not_owned(pair: Hosts, tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"args": [], "path": "x.py", "cwd": str(tmp_path), "seed": None}
    run = pair.run("script", parameters, sent="x.py", owned=False)
    identity = next(run)["run"]
    run.close()
    again = pair.stream("a", Call.ATTACH, run=identity, events=0, output=0, owned=False)
    assert list(again)[-1]["state"] == "cancelled"


def test_an_agent_that_died_is_followed_by_one_that_has_its_own_tasks(pair: Hosts) -> None:
    before = {host: pair.status(host) for host in "ab"}
    pair.kill_agent("b")
    after = {host: pair.status(host) for host in "ab"}
    assert [task["pid"] for task in after["b"]["tasks"]] == [task["pid"] for task in before["b"]["tasks"]]
    assert after["b"]["hosts"][0]["agent_pid"] != before["b"]["hosts"][0]["agent_pid"]
    assert after["a"]["hosts"] == before["a"]["hosts"]
    pair.wait_until_ready()


def test_ports_of_other_hosts_are_neither_held_nor_missed(pair: Hosts) -> None:
    told = pair.prepare(layout_of([*TASKS, task_of("worker:2", "a")]))
    assert list(told["a"]["choices"]["ports"]) == ["/job:worker/task:2"]
    assert told["b"]["choices"]["ports"] == {}
    assert [found["found"]["generations"].keys() for found in told.values()] == [
        {"/job:worker/task:0"},
        {"/job:ps/task:0", "/job:worker/task:1"},
    ]


def can_connect(port: int) -> bool:
    with socket.socket() as dialling:
        return dialling.connect_ex(("127.0.0.1", port)) == 0


def test_hosts_try_each_others_ports_before_a_server_listens(hosts: Hosts) -> None:
    prepared = hosts.prepare(layout_of())
    ports = {host: sorted(told["choices"]["ports"].values()) for host, told in prepared.items()}
    addresses = [f"localhost:{port}" for port in ports["b"]]
    refused = hosts.ask("a", Call.REACH, addresses=addresses, timeout=30.0)["failures"]
    assert refused == dict.fromkeys(addresses, "Connection refused"), "held, and nobody listens"
    listening = hosts.stream("b", Call.LISTEN)
    assert next(listening) == {"ports": ports["b"]}
    assert hosts.ask("a", Call.REACH, addresses=addresses, timeout=30.0) == {"failures": {}}
    with socket.socket() as caller:
        caller.connect(("127.0.0.1", ports["b"][0]))
        other = hosts.stream("b", Call.LISTEN)  # of another command at the same time
        next(other)
        other.close()
        listening.close()
        caller.settimeout(30)
        with pytest.raises(ConnectionResetError):
            caller.recv(1)  # nothing was ever served there
    wait_for(lambda: not can_connect(ports["b"][0]))
    with socket.socket(socket.AF_INET6) as binder, pytest.raises(OSError, match="in use"):
        binder.bind(("", ports["b"][0]))
    hosts.apply(layout_of(), prepared)
    assert sorted(hosts.layout.ports_on("b")) == ports["b"], "where servers listen now"


def test_ports_are_quiet_again_however_the_listening_ends(hosts: Hosts) -> None:
    prepared = hosts.prepare(layout_of())
    listening = hosts.stream("b", Call.LISTEN)
    next(listening)
    hosts.apply(layout_of(), prepared)  # while it goes on
    listening.close()
    listening = hosts.stream("b", Call.LISTEN)
    assert next(listening) == {"ports": []}, "the servers listen themselves"
    listening.close()
    hosts.down("b")
    hosts.prepare(layout_of())
    listening = hosts.stream("b", Call.LISTEN)
    (pid,) = [pid for pid, title in hosts.sandbox.processes().items() if " agent on b" in title]
    port = next(listening)["ports"][0]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not can_connect(port))
    listening.close()
    hosts.events("b")  # has the next agent tidy up


def test_what_cannot_be_reached_is_told_with_the_reason(hosts: Hosts) -> None:
    hosts.up(layout_of())
    address = hosts.task("worker:1")["address"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{closed.getsockname()[1]}"
        told = hosts.ask("a", Call.REACH, addresses=[address, silent, "[::1]:1"], timeout=30.0)
    assert told["failures"].keys() == {silent, "[::1]:1"}
    assert told["failures"][silent] == "Connection refused"
    assert hosts.ask("a", Call.REACH, addresses=[], timeout=1.0) == {"failures": {}}


def test_problems_are_told_together_and_hold_nothing(hosts: Hosts) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        tasks = (task_of("worker:0", "a", port=port), task_of("worker:1", "b", address_host="192.0.2.7", gpus=100))
        told = hosts.prepare(layout_of(tasks))
    (a,), (address, gpus) = told["a"]["problems"], told["b"]["problems"]
    assert a["message"].startswith(f"worker:0: port {port} is taken by ")
    assert address["message"].startswith("worker:1: 192.0.2.7 is not an address of b: ")
    assert gpus["message"].startswith("the tasks ask for 100 GPUs (worker:1 100), b has ")
    assert told["a"]["choices"] == told["b"]["choices"] == {"ports": {}, "gpus": {}}
    wait_for(lambda: not hosts.sandbox.leftovers())


def test_servers_are_started_anew_for_an_address_that_is_new_on_another_host(hosts: Hosts) -> None:
    hosts.up(layout_of())
    before = {short: hosts.task(short)["pid"] for short in ("ps:0", "worker:0", "worker:1")}
    hosts.up(layout_of([*TASKS, task_of("worker:2", "b")]))
    after = {short: hosts.task(short)["pid"] for short in before}
    assert all(after[short] != before[short] for short in before), "each of them must know it"
    # And one that goes away is stopped where it is, and nothing else.
    hosts.up(layout_of())
    assert shorts(hosts.status("b")) == ["ps:0", "worker:1"]
    assert {short: hosts.task(short)["pid"] for short in before} == after


def test_a_host_whose_last_task_has_gone_goes_on_with_none_until_it_goes_down(hosts: Hosts) -> None:
    hosts.up(layout_of([task_of("worker:0", "a"), task_of("worker:1", "b")]))
    hosts.up(layout_of([task_of("worker:0", "a")]))
    assert hosts.status("b")["tasks"] == []
    assert hosts.ask("b", Call.DEVICES) == {"devices": [], "silent": []}
    hosts.ask("b", Call.RESTART, tasks=[], grace=1.0)
    hosts.kill_agent("b")
    assert hosts.status("b")["tasks"] == []
    hosts.down("b")
    assert shorts(hosts.status("a")) == ["worker:0"]


def test_hosts_go_down_one_by_one(hosts: Hosts) -> None:
    hosts.up(layout_of())
    address = hosts.task("worker:1")["address"]
    hosts.down("b")
    with pytest.raises(ClusterError) as caught:
        hosts.status("b")
    assert caught.value.exit_code is ExitCode.NOT_RUNNING
    assert shorts(hosts.status("a")) == ["worker:0"]
    with pytest.raises(ClusterError) as caught:
        next(hosts.run("pi", PI))
    assert f"worker:1 at {address} on b does not answer" in caught.value.message
    assert caught.value.exit_code is ExitCode.UNHEALTHY
    hosts.down("a")
    wait_for(lambda: not hosts.sandbox.leftovers())


def test_a_host_that_no_command_asks_for_goes_down_by_itself(hosts: Hosts) -> None:
    hosts.up(layout_of())
    a, b = (hosts.stream(host, Call.EVENTS, lines=None, since=None, follow=True, after={}) for host in "ab")
    next(a), next(b)
    hosts.up(layout_of(lease=2.0))  # while both are followed, however long it takes
    b.close()
    folder = hosts.state_folder("b")
    # Not asked, which would be a contact.
    wait_for(lambda: not (folder / "journal.json").exists() and not (folder / "lock").exists(), 60)
    assert (hosts.state_folder("a") / "journal.json").exists(), "somebody follows its events"
    a.close()
    wait_for(lambda: not hosts.sandbox.leftovers(), 60)
    told = [(each["event"], each["detail"]) for each in hosts.events("b")]
    assert told[-1] == ("down", "")
    why = "no command has asked for 2 s, the cluster's lease: its part here goes down"
    assert ("lease over", why) in told
    wait_for(lambda: not hosts.sandbox.leftovers())


SECRET = "hunter2-öß-9f3c7a"
WITH_SECRET = tuple(
    replace(task, env={"TOKEN": SECRET, "PLAIN": "seen"}, secrets=("TOKEN",)) if task.job == "worker" else task
    for task in TASKS
)


def holders(folder: Path) -> list[str]:
    """The files in a folder that hold the secret, as it is or as JSON has it."""
    forms = [SECRET.encode(), json.dumps(SECRET)[1:-1].encode(), b"hunter2"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.name) for path in files if any(form in path.read_bytes() for form in forms)]


def environment_of(pid: int) -> bytes:
    """The environment that a process was started with, and what else it says of itself."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ", "comm"))


def test_secret_values_are_in_one_private_file_and_nowhere_else(hosts: Hosts) -> None:
    hosts.up(layout_of(WITH_SECRET))
    hosts.ask("a", Call.RESTART, tasks=["worker:0"], grace=1.0)
    hosts.wait_until_ready()
    assert holders(hosts.sandbox.folder / "state") == []
    runtime = hosts.sandbox.folder / "run" / "tfcluster"
    assert sorted(holders(runtime)) == sorted(path.name for path in runtime.glob("*.secrets"))
    assert len(list(runtime.glob("*.secrets"))) == 2
    assert {path.stat().st_mode & 0o777 for path in runtime.glob("*.secrets")} == {0o600}
    told = json.dumps([hosts.status("a"), hosts.status("b"), hosts.events("a"), hosts.events("b")], ensure_ascii=False)
    assert "hunter2" not in told
    assert not [pid for pid in hosts.sandbox.processes() if b"hunter2" in environment_of(pid)]
    # A layout that differs in it alone is told without it.
    changed = [replace(task, env={**task.env, "TOKEN": "another"}) if task.env else task for task in WITH_SECRET]
    for told in hosts.prepare(layout_of(changed)).values():
        assert told["found"]["layout"]["tasks"][1]["env"]["TOKEN"] == SECRET, "by which a change is seen"
    hosts.down("a")
    hosts.down("b")
    wait_for(lambda: not hosts.sandbox.leftovers())
    assert holders(hosts.sandbox.folder) == []


def test_the_next_agent_has_the_secrets_also_beside_another_socket(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.up(layout_of(WITH_SECRET))
    hosts.kill_agent("a")
    elsewhere = hosts.sandbox.folder / "other"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(elsewhere))
    before = hosts.task("worker:0")["pid"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: hosts.task("worker:0")["state"] == "ready" and hosts.task("worker:0")["pid"] != before)
    assert hosts.ask("a", Call.LAYOUT)["tasks"][1]["env"] == {"PLAIN": "seen", "TOKEN": SECRET}
    runtime = hosts.sandbox.folder / "run" / "tfcluster"
    assert [path.name.split(".")[1] for path in runtime.glob("*.secrets")] == ["b"]
    for path in runtime.glob("two.a.*"):
        path.unlink()  # the socket of the agent that was killed
    assert len(list((elsewhere / "tfcluster").glob("*.secrets"))) == 1
    hosts.down("a")
    wait_for(lambda: not list((elsewhere / "tfcluster").iterdir()))


def test_a_task_whose_secret_is_lost_is_not_started_without(hosts: Hosts) -> None:
    """As after a reboot, when the folder in memory is gone."""
    hosts.up(layout_of(WITH_SECRET))
    before = {short: hosts.task(short)["pid"] for short in ("ps:0", "worker:1")}
    hosts.kill_agent("b")
    for path in (hosts.sandbox.folder / "run" / "tfcluster").glob("two.b.*.secrets"):
        path.unlink()
    os.kill(before["worker:1"], signal.SIGKILL)
    task = wait_for(lambda: found if (found := hosts.task("worker:1"))["state"] == "failed" else None)
    assert task["last_exit"]["reason"] == "not started"
    assert task["last_exit"]["detail"] == (
        "secret TOKEN is lost, no journal holds it: `tfcluster up SPEC` gives it again"
    )
    assert hosts.task("ps:0")["pid"] == before["ps:0"], "it has no secret"
    with pytest.raises(ClusterError, match=r"worker:1 at localhost:\d+ on b does not answer"):
        next(hosts.run("pi", PI))
    failed = [each["detail"] for each in hosts.events("b") if each["event"] == "failed"]
    assert failed == [f"not started: {task['last_exit']['detail']}"]
    hosts.up(layout_of(WITH_SECRET))
    assert hosts.ask("b", Call.LAYOUT)["tasks"][2]["env"]["TOKEN"] == SECRET
    assert hosts.task("ps:0")["pid"] == before["ps:0"]
