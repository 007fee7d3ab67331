"""Hangs over several hosts with real sshds, on purpose: who waits says for which task on which host, and why."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Command, wait_for
from tests.end_to_end.test_ssh import Over, over
from tests.end_to_end.test_waits import BEGIN, QUICK, SESSION, line_of, write

NAMES = ("alpha", "beta")
JOBS = "jobs:\n  chief: {tasks: 1, hosts: [alpha]}\n  worker: {tasks: 2, hosts: [beta]}\nrestart: {policy: never}\n"
STRATEGY = f"""{BEGIN}
if os.environ["TFCLUSTER_TASK"] == "worker:1":
    time.sleep(1000)
tf.distribute.MultiWorkerMirroredStrategy()  # WAITS HERE
"""

pytestmark = (
    pytest.mark.slow
)  # tests/agent/test_waits.py and tests/client/test_wait_diagnosis.py have the same by parts


@pytest.fixture(scope="module")
def wide(needs_sshd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """A cluster over two hosts that look often at scripts; on beta, a file `other` is another TensorFlow."""
    folder = tmp_path_factory.mktemp("wide")
    other = f"""
import dataclasses
original = AgentContext.status
def status(self):
    found = original(self)
    if self.host == "beta" and os.path.exists({str(folder / "other")!r}):
        found = dataclasses.replace(found, hosts=(dataclasses.replace(found.hosts[0], tensorflow="2.13.0"),))
    return found
AgentContext.status = status
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_SETTINGS", json.dumps(QUICK))
        patch.setenv("TEST_CHANGES", json.dumps({"tfcluster.agent.context": other}))
        with over(folder, *NAMES) as sandbox:
            sandbox("up", sandbox.spec(sandbox.text(NAMES, JOBS)))
            yield sandbox


def wait_and_end(wide: Over) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a script that waits until it is ended, and return its last event before, and its error."""
    events = wide.json_lines("run", "--start-timeout", "2", write(wide, SESSION), code=124)
    waiting = [event for event in events if event["event"] == "waiting"]
    assert waiting[-1]["message"].startswith(f"train.py:{line_of(SESSION)} waits in Session.run: ")
    return waiting[-1], events[-1]["error"]


def test_a_task_on_another_host_that_has_failed(wide: Over) -> None:
    os.kill(wide.task("worker:1")["pid"], signal.SIGKILL)
    wait_for(lambda: wide.task("worker:1", code=None)["state"] == "failed")
    try:
        waiting, error = wait_and_end(wide)
    finally:
        wide("restart", "worker:1", "--yes")
        wide.wait_until("running")
    hint = "`tfcluster logs -c wide worker:1` shows why; `tfcluster restart -c wide worker:1` restarts it."
    problem = "worker:1 on beta died (SIGKILL) and has failed"
    assert waiting["problems"] == [{"problem": problem, "hint": hint, "task": "/job:worker/task:1", "host": "beta"}]
    # What the leading host sees of it, which is all that a run without a command can tell.
    address = f"worker:1 at {wide.task('worker:1')['address']} on beta"
    assert f"{address} refuses connections: no server listens there" in error["message"]


def test_a_task_on_another_host_whose_port_drops_what_arrives_and_one_without_a_route(wide: Over) -> None:
    address = wide.task("worker:1")["address"]
    alpha, beta = (wide.network.network[name] for name in NAMES)
    alpha.ip("route", "add", "unreachable", wide.network.address("beta"))
    try:
        reason = "No route to host, although it answers on beta"
        assert f"on beta cannot be reached: {reason}" in wait_and_end(wide)[0]["message"]
    finally:
        alpha.ip("route", "del", "unreachable", wide.network.address("beta"))
    with beta.dropping(int(address.rpartition(":")[2])):
        waiting, error = wait_and_end(wide)
    wide.wait_until("running")
    (problem,) = waiting["problems"]
    dropped = f"worker:1 at {address} on beta cannot be reached: connections are not answered (a firewall drops them"
    assert problem["problem"].startswith(dropped)
    assert problem["problem"].endswith(", although it answers on beta")
    assert problem["hint"].startswith("Let alpha connect to it; `tfcluster doctor ")
    assert dropped in error["message"]


def test_a_host_with_another_tensorflow(wide: Over) -> None:
    (wide.folder / "other").touch()
    pid = wide.task("worker:1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    frozen = f"worker:1 on beta is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
    try:
        assert frozen in wide("stack", "worker:1").stdout
        waiting, _ = wait_and_end(wide)
    finally:
        os.kill(pid, signal.SIGCONT)
        (wide.folder / "other").unlink()
        wide.wait_until("running")
    problem, other = waiting["problems"]
    assert problem["problem"] == frozen
    own = wide.status()["hosts"][0]["tensorflow"]
    assert other["problem"] == f"host beta runs TensorFlow 2.13.0, alpha {own}"
    assert other["hint"].startswith(f"Install the same version everywhere (`pip install tensorflow=={own}`)")


def waits_of(wide: Over, *arguments: str) -> tuple[Iterator[dict[str, Any]], Command]:
    command = wide.start("launch", "-o", "json", *arguments, write(wide, STRATEGY))
    return map(json.loads, command.stdout), command


def read_until(events: Iterator[dict[str, Any]], problem: str) -> None:
    """Read events until one of a wait has this problem; before, more members may not have begun to connect."""
    message = f"train.py:{line_of(STRATEGY)} waits in MultiWorkerMirroredStrategy: {problem}"
    assert any(event["event"] == "waiting" and event["message"] == message for event in events), message


def test_a_member_on_another_host_that_does_not_come(wide: Over) -> None:
    """It does something else, then it is frozen; the leading host names it, and the time for the start ends all."""
    events, command = waits_of(wide, "--start-timeout", "60")
    read_until(events, "worker:1 on beta has not begun to connect")
    processes = wide.json("stack", wide.json("runs")[-1]["run"])["processes"]
    asleep = line_of(STRATEGY) - 1
    (pid,) = [each["pid"] for each in processes if each["threads"][0]["frames"][-1]["line"] == asleep]
    os.kill(pid, signal.SIGSTOP)
    frozen = f"worker:1 on beta is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
    read_until(events, frozen)
    *_, result = events
    assert command.wait() == 124
    assert result["error"]["message"].endswith(f"waits in MultiWorkerMirroredStrategy: {frozen}")
    assert result["error"]["hint"] == f"`kill -CONT {pid}` on beta resumes it."


def test_the_time_for_the_start_ends_members_of_which_none_is_on_the_leading_host(wide: Over) -> None:
    events, command = waits_of(wide, "--each", "worker", "--start-timeout", "8")
    read_until(events, "worker:1 on beta has not begun to connect")
    *_, result = events
    assert command.wait() == 124
    assert "has not started within 8 s: train.py:" in result["error"]["message"]
    assert result["error"]["message"].endswith("worker:1 on beta has not begun to connect")
    wait_for(lambda: not [each for each in wide.network.processes().values() if each.endswith(" program")])


def test_a_member_on_another_host_that_ends_while_the_others_wait_for_it(wide: Over) -> None:
    text = STRATEGY.replace("time.sleep(1000)", "sys.exit()")
    error = wide("launch", write(wide, text), code=1).stderr
    waiting = f"train.py:{line_of(text)} waits in MultiWorkerMirroredStrategy"
    ended = "worker:1 on beta has ended (exit code 0)"
    assert f"\nerror: {ended}, and chief:0 on alpha, worker:0 on beta cannot continue: {waiting}\n" in error
    wait_for(lambda: not [each for each in wide.network.processes().values() if each.endswith(" program")])
