"""Hangs over several hosts with real sshds, on purpose: who waits says for which task on which host, and why."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clusters import Hosts
from tests.conftest import Command, wait_for
from tests.end_to_end.test_waits import BEGIN, QUICK, SESSION, line_of, write
from tests.hosts import HostsSandbox

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  chief: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 2, hosts: [beta]}\nrestart: {policy: never}\n"
STRATEGY = f"""{BEGIN}
if os.environ["TFCLUSTER_TASK"] == "worker:1":
    time.sleep(1000)
tf.distribute.MultiWorkerMirroredStrategy()  # WAITS HERE
"""

pytestmark = pytest.mark.slow  # tests/agent/test_waits.py and tests/client/test_locate.py have the same by parts


#: On a host, a file `other` in the home folder is another TensorFlow.
OTHER = """
import dataclasses
original = AgentContext.status
def status(self):
    found = original(self)
    if os.path.exists(os.path.expanduser("~/other")):
        found = dataclasses.replace(found, hosts=(dataclasses.replace(found.hosts[0], tensorflow="2.13.0"),))
    return found
AgentContext.status = status
"""
HOSTS = Hosts(NAMES, JOBS, warm=True, settings=QUICK, changes={"tfcluster.agent.context": OTHER})


def wait_and_end(hosts: HostsSandbox) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a script that waits until it is ended, and return its last event before, and its error."""
    events = hosts.json_lines("run", "--start-timeout", "2", write(hosts, SESSION), code=124)
    waiting = [event for event in events if event["event"] == "waiting"]
    assert waiting[-1]["message"].startswith(f"train.py:{line_of(SESSION)} waits in Session.run: ")
    return waiting[-1], events[-1]["error"]


def test_a_task_on_another_host_that_has_failed(hosts: HostsSandbox) -> None:
    os.kill(hosts.task("worker:1")["pid"], signal.SIGKILL)
    wait_for(lambda: hosts.task("worker:1", code=None)["state"] == "failed")
    try:
        waiting, error = wait_and_end(hosts)
    finally:
        hosts("restart", "worker:1", "--yes")
        hosts.wait_until("running")
    hint = "`tfcluster logs -c wide worker:1` shows why; `tfcluster restart -c wide worker:1` restarts it."
    problem = "worker:1 on beta died (SIGKILL) and has failed"
    assert waiting["problems"] == [{"problem": problem, "hint": hint, "task": "/job:worker/task:1", "host": "beta"}]
    # What the leading host sees of it, which is all that a run without a command can tell.
    address = f"worker:1 at {hosts.task('worker:1')['address']} on beta"
    assert f"{address} refuses connections: no server listens there" in error["message"]


def test_a_task_on_another_host_whose_port_drops_what_arrives_and_one_without_a_route(hosts: HostsSandbox) -> None:
    address = hosts.task("worker:1")["address"]
    alpha, beta = (hosts.network.network[name] for name in NAMES)
    alpha.ip("route", "add", "unreachable", hosts.network.address("beta"))
    try:
        reason = "No route to host, although it answers on beta"
        assert f"on beta cannot be reached: {reason}" in wait_and_end(hosts)[0]["message"]
    finally:
        alpha.ip("route", "del", "unreachable", hosts.network.address("beta"))
    with beta.dropping(int(address.rpartition(":")[2])):
        waiting, error = wait_and_end(hosts)
    hosts.wait_until("running")
    (problem,) = waiting["problems"]
    dropped = f"worker:1 at {address} on beta cannot be reached: connections are not answered (a firewall drops them"
    assert problem["problem"].startswith(dropped)
    assert problem["problem"].endswith(", although it answers on beta")
    assert problem["hint"].startswith("Let alpha connect to it; `tfcluster doctor ")
    assert dropped in error["message"]


def test_a_host_with_another_tensorflow(hosts: HostsSandbox) -> None:
    (hosts.network.home("beta") / "other").touch()
    pid = hosts.task("worker:1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    frozen = f"worker:1 on beta is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
    try:
        assert frozen in hosts("stack", "worker:1").stdout
        waiting, _ = wait_and_end(hosts)
    finally:
        os.kill(pid, signal.SIGCONT)
        (hosts.network.home("beta") / "other").unlink()
        hosts.wait_until("running")
    problem, other = waiting["problems"]
    assert problem["problem"] == frozen
    own = hosts.status()["hosts"][0]["tensorflow"]
    assert other["problem"] == f"host beta runs TensorFlow 2.13.0, alpha {own}"
    assert other["hint"].startswith(f"Install the same version everywhere (`pip install tensorflow=={own}`)")


def waits_of(hosts: HostsSandbox, *arguments: str) -> tuple[Iterator[dict[str, Any]], Command]:
    command = hosts.start("launch", "-o", "json", *arguments, write(hosts, STRATEGY))
    return map(json.loads, command.stdout), command


def read_until(events: Iterator[dict[str, Any]], problem: str) -> dict[str, Any]:
    """Read events until one of a wait has this problem; before, more members may not have begun to connect."""
    message = f"train.py:{line_of(STRATEGY)} waits in MultiWorkerMirroredStrategy: {problem}"
    return next(event for event in events if event["event"] == "waiting" and event["message"] == message)


def test_a_member_on_another_host_that_does_not_come(hosts: HostsSandbox) -> None:
    """It does something else, then it is frozen; the leading host names it."""
    events, command = waits_of(hosts)
    read_until(events, "worker:1 on beta has not begun to connect")
    run = hosts.json("runs")[-1]["run"]
    processes = hosts.json("stack", run)["processes"]
    asleep = line_of(STRATEGY) - 1
    (pid,) = [each["pid"] for each in processes if each["threads"][0]["frames"][-1]["line"] == asleep]
    os.kill(pid, signal.SIGSTOP)
    waiting = read_until(events, f"worker:1 on beta is frozen: a signal (SIGSTOP) has stopped its process, {pid}")
    assert waiting["problems"][0]["hint"] == f"`kill -CONT {pid}` on beta resumes it."
    hosts("cancel", run)
    command.communicate(timeout=60)
    assert command.returncode == 1


def test_the_time_for_the_start_ends_members_of_which_none_is_on_the_leading_host(hosts: HostsSandbox) -> None:
    events, command = waits_of(hosts, "--each", "worker", "--start-timeout", "8")
    read_until(events, "worker:1 on beta has not begun to connect")
    *_, result = events
    assert command.wait() == 124
    assert "has not started within 8 s: train.py:" in result["error"]["message"]
    assert result["error"]["message"].endswith("worker:1 on beta has not begun to connect")
    wait_for(lambda: not [each for each in hosts.network.processes().values() if each.endswith(" program")])


def test_a_member_on_another_host_that_ends_while_the_others_wait_for_it(hosts: HostsSandbox) -> None:
    text = STRATEGY.replace("time.sleep(1000)", "sys.exit()")
    error = hosts("launch", write(hosts, text), code=1).stderr
    waiting = f"train.py:{line_of(text)} waits in MultiWorkerMirroredStrategy"
    ended = "worker:1 on beta has ended (exit code 0)"
    assert f"\nerror: {ended}, and chief:0 on alpha, worker:0 on beta cannot continue: {waiting}\n" in error
    wait_for(lambda: not [each for each in hosts.network.processes().values() if each.endswith(" program")])
