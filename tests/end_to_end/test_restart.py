"""Servers that die, hang, run out of memory or are restarted on purpose: what comes back, when, and what is said."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.conftest import COMMAND, Sandbox, wait_for
from tests.control_groups import EATS_MEMORY, memory_group
from tests.strikes import taken

SPEC = "name: again\njobs:\n  worker: {tasks: 2}\n  ps: {tasks: 1}\n"


def events(sandbox: Sandbox, *words: str) -> list[tuple[str, str, str]]:
    """What happened: task, word, detail; only the events that are called like this, where that is said."""
    lines = sandbox.json_lines("events")
    return [(event["task"], event["event"], event["detail"]) for event in lines if not words or event["event"] in words]


def restarted_by_itself(sandbox: Sandbox, short: str) -> Any:
    """Kill a task and wait until it is up again, with its new status."""
    before = sandbox.task(short)
    os.kill(before["pid"], signal.SIGKILL)

    def again() -> Any:
        after = next(task for task in sandbox.wait_until("running")["tasks"] if task["name"] == short)
        return after if after["restarts"] > before["restarts"] else None

    return wait_for(again)


def test_restart_on_purpose(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC), env=sandbox.with_settings({"STATUS_REUSE_SECONDS": 600.0}))
    first = sandbox.tasks("pid")

    # Requests for the status share one until something changes.
    status = sandbox.status()
    time.sleep(0.3)  # the uptime has changed
    assert sandbox.status() == status

    # There is no terminal to ask on, so the ps stays, and with it all that was named.
    refused = sandbox("restart", code=2).stderr
    assert refused.splitlines() == [
        "error: cluster 'again' would lose the variables of ps:0: nothing was restarted",
        "hint: Add --yes to restart anyway.",
    ]
    assert "no task 'worker:9'" in sandbox("restart", "worker:9", code=2).stderr
    assert sandbox.tasks("pid") == first

    # The count begins again.
    assert restarted_by_itself(sandbox, "worker:1")["restarts"] == 1
    restart = sandbox("restart", "worker:1", "--yes")
    assert re.search(r"again: 1 task restarted in \d+\.\d\d s\n", restart.stdout)
    second = sandbox.tasks("pid")
    assert [short for short in first if first[short] == second[short]] == ["worker:0", "ps:0"]
    worker = sandbox.task("worker:1")
    assert (worker["restarts"], worker["last_exit"]["reason"]) == (0, "SIGTERM")
    assert worker["last_exit"]["detail"] == "`tfcluster restart` stopped it"


@pytest.mark.slow
def test_a_restart_asks_before_a_run_fails_and_does_not_mention_one_that_continues(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    other = sandbox("run", "pi", "--samples", "1e13", "--detach").stdout.strip()
    wait_for(lambda: [each["state"] for each in sandbox.status()["runs"]] == ["running"])
    assert "LOST" not in sandbox("restart", "worker:1").stderr
    assert [(each["run"], each["state"]) for each in sandbox.status()["runs"]] == [(other, "running")]
    sandbox("cancel", other)
    run = sandbox.start("run", "expfit", "--mode", "data-parallel", "--steps", "1e8", "-o", "json")
    name = json.loads(run.stdout.readline())["run"]
    next(line for line in run.stdout if json.loads(line)["event"] == "progress")
    assert sandbox("restart", "worker", code=2).stderr.splitlines() == [
        f"error: cluster 'again' would lose run {name}, if it uses these tasks: nothing was restarted",
        "hint: Add --yes to restart anyway.",
    ]
    assert f"LOST: run {name}, if it uses these tasks\n" in sandbox("restart", "worker:1", "--yes").stderr
    result = json.loads(run.communicate(timeout=60)[0].splitlines()[-1])
    assert result["error"]["message"].startswith("worker:1 was stopped by `tfcluster restart`\nafter that, ")
    assert run.returncode == 1


@pytest.mark.slow
def test_a_rolling_restart(sandbox: Sandbox) -> None:
    """One after another, the ps first, each when the one before is ready."""
    sandbox("up", sandbox.spec(SPEC))
    before, told = sandbox.tasks("pid"), len(events(sandbox))
    status = sandbox.json("restart", "--rolling", "--yes")
    assert status["state"] == "running"
    assert not set(sandbox.tasks("pid").values()) & set(before.values())
    steps = [
        (task, word)
        for task, word, detail in events(sandbox)[told:]
        if word == "stopping" or (word == "ready" and "after its start" in detail)
    ]
    assert steps == [(task, word) for task in ("ps:0", "worker:0", "worker:1") for word in ("stopping", "ready")]
    assert "pi = 3.1" in sandbox("run", "pi", "--samples", "1e6").stdout


@pytest.mark.slow
def test_at_a_terminal_a_restart_asks(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    before = sandbox.tasks("pid")
    for answer, code in (("n", 1), ("y", 0)):
        terminal = sandbox.at_terminal(*COMMAND, "restart", "ps", env={"TERM": "dumb"})
        terminal.expect("LOST: the variables of ps:0\r\nContinue and lose that\\? \\[y/N\\]: ")
        terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == code, terminal.before
        assert (sandbox.tasks("pid")["ps:0"] == before["ps:0"]) is (answer == "n")


@pytest.mark.slow
def test_each_job_has_its_policy_and_its_limit(sandbox: Sandbox) -> None:
    spec = sandbox.spec(
        "name: limits\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 1, restart: {policy: never}}\n"
        "restart: {backoff: {initial: 0.2, max: 0.2}, limit: 2 in 3600}\n"
    )
    sandbox("up", spec)
    for restarts in (1, 2):
        assert restarted_by_itself(sandbox, "ps:0")["restarts"] == restarts
    ps, worker = (task["pid"] for task in sandbox.status()["tasks"])
    os.kill(ps, signal.SIGKILL)
    assert [task["state"] for task in sandbox.wait_until("degraded")["tasks"]] == ["failed", "ready"]
    os.kill(worker, signal.SIGKILL)
    sandbox.wait_until("failed")
    died = [detail for task, _, detail in events(sandbox, "died") if task == "ps:0"]
    assert died[0] == "SIGKILL; restarting immediately"
    assert re.fullmatch(r"SIGKILL; backing off 0\.[12]\d* s", died[1]), died
    assert events(sandbox, "failed") == [
        ("ps:0", "failed", "SIGKILL; more than 2 restarts in 3600 s"),
        ("worker:0", "failed", "SIGKILL; restart policy never"),
    ]
    lines = sandbox("status", code=4).stdout.splitlines()
    for short in ("ps:0", "worker:0"):
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{short} last ended with"))
        assert re.fullmatch(rf"{short} last ended with SIGKILL at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d", lines[at])
        assert "Started server with target" in "".join(lines[at + 1 : at + 9])
    # Without a process a ps has nothing to lose: no yes is needed.
    assert "2 tasks restarted" in sandbox("restart").stdout
    assert [task["restarts"] for task in sandbox.status()["tasks"]] == [0, 0]
    # Of tasks that are restarted one after another, those behind one that fails stay as they are.
    before = sandbox.tasks("pid")
    log_buffer = next(sandbox.folder.glob("state/tfcluster/limits/localhost/log-buffers/ps:0"))
    log_buffer.rename(sandbox.folder / "away")
    log_buffer.mkdir()
    error = sandbox("restart", "--rolling", "--yes", code=4).stderr
    assert re.search(r"ps:0 at \S+ on localhost is failed \(exit code 1 at .*\): .*Is a directory", error)
    assert sandbox.task("worker:0", code=4)["pid"] == before["worker:0"]
    log_buffer.rmdir()


def test_a_server_that_hangs_is_unresponsive_and_then_replaced(sandbox: Sandbox) -> None:
    sooner = sandbox.with_settings({"HEALTH_INTERVAL_SECONDS": 0.5, "PROBE_TIMEOUT_SECONDS": 1.0})
    sandbox("up", sandbox.spec("name: hangs\njobs:\n  worker: {tasks: 1}\n"), env=sooner)
    before = sandbox.task("worker:0")
    os.kill(before["pid"], signal.SIGSTOP)
    sandbox.wait_for_event("unresponsive")
    sandbox.wait_for_event("health-check-killed")
    after = wait_for(lambda: sandbox.wait_until("running")["tasks"][0])
    assert (after["pid"] != before["pid"], after["restarts"]) == (True, 1)
    assert after["last_exit"]["reason"] == "SIGKILL"
    assert after["last_exit"]["detail"] == "it did not answer (timed out after 1 s), so its agent killed it"
    assert "it did not answer 4 times in a row (timed out after 1 s)" in sandbox("events").stdout


def test_every_message_says_why_a_server_does_not_answer(sandbox: Sandbox) -> None:
    sooner = sandbox.with_settings({"HEALTH_INTERVAL_SECONDS": 0.5, "PROBE_TIMEOUT_SECONDS": 1.0})
    spec = sandbox.spec("name: hangs\nrestart: {policy: never}\njobs:\n  worker: {tasks: 1}\n")
    sandbox("up", spec, env=sooner)
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGSTOP)
    sandbox.wait_for_event("unresponsive")
    task = wait_for(lambda: sandbox.json("status", code=4)["tasks"][0])
    assert task["probe_error"] == "timed out after 1 s"
    assert "worker:0 does not answer (timed out after 1 s)" in sandbox("status", code=4).stdout
    waited = sandbox("wait", "--ready", "--timeout", "1", code=124).stderr
    assert f"worker:0 at {task['address']} on localhost is unresponsive; it does not answer (timed out" in waited
    assert f"worker:0 at {task['address']} does not answer (timed out after" in sandbox("devices", code=4).stderr
    os.kill(task["pid"], signal.SIGCONT)
    assert sandbox.wait_until("running")["tasks"][0]["probe_error"] is None


@pytest.mark.slow
def test_an_out_of_memory_kill_is_reported(sandbox: Sandbox) -> None:
    with memory_group() as group:
        spec = sandbox.spec("name: hungry\njobs:\n  worker: {tasks: 2}\n")
        assert sandbox.execute(*COMMAND, "up", spec, preexec_fn=group.join).returncode == 0
        worker = sandbox.task("worker:0")["pid"]
        # The kernel picks the process with the highest score, and none with the lowest possible.
        for pid in sandbox.processes():
            with contextlib.suppress(OSError):  # a helper may just have ended
                Path(f"/proc/{pid}/oom_score_adj").write_text("1000" if pid == worker else "-1000")
        eat = f"while os.path.exists('/proc/{worker}/fd'):\n    data.append(bytearray(1 << 20))\n"
        program = [sys.executable, "-c", f"import os\ninput()\ndata = []\n{eat}"]
        eater = subprocess.Popen(program, stdin=subprocess.PIPE, preexec_fn=group.join)
        group.limit(1 << 30)
        eater.communicate(b"\n", timeout=120)
        again = wait_for(lambda: next((t for t in sandbox.wait_until("running")["tasks"] if t["restarts"]), None))
        assert again["index"] == 0
        assert again["last_exit"]["reason"] == "SIGKILL (out of memory)"
        assert "SIGKILL (out of memory)" in sandbox("status").stdout
        sandbox("down")


#: By the name of a script, what it does before it eats memory: only one member does, and its driver is killed.
HUNGRY = {
    "script": "",
    "member": "import os\nif os.environ['TFCLUSTER_TASK'] == 'worker:0':\n    raise SystemExit\n",
    "driver": "import os\n",
}


@pytest.mark.slow
def test_an_out_of_memory_kill_of_a_run_is_reported(sandbox: Sandbox) -> None:
    said = {}
    with memory_group() as group:
        spec = sandbox.spec("name: hungry\njobs:\n  worker: {tasks: 2}\n")
        assert sandbox.execute(*COMMAND, "up", spec, preexec_fn=group.join).returncode == 0
        group.limit(1 << 30)
        for name, text in HUNGRY.items():
            victim = 'f"/proc/{os.getppid()}/' if name == "driver" else '"/proc/self/'
            script = sandbox.spec(text + EATS_MEMORY.replace('"/proc/self/', victim), f"{name}.py")
            code = 1 if name == "driver" else 137
            said[name] = sandbox("launch" if name == "member" else "run", script, code=code).stderr
        sandbox("down")
    assert "error: script.py was terminated by SIGKILL (out of memory)" in said["script"]
    assert "error: worker:1 on localhost was terminated by SIGKILL (out of memory)" in said["member"]
    assert re.search(r"error: the driver of driver-\w+ died \(SIGKILL \(out of memory\)\)", said["driver"])


@pytest.mark.slow
def test_a_task_without_restarts_reports_who_has_its_port(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: taken\njobs: {worker: {tasks: 1}}\nrestart: {policy: never}\n"))
    worker = sandbox.task("worker:0")
    os.kill(worker["pid"], signal.SIGKILL)
    sandbox.wait_until("failed")
    sandbox.kill_agent()  # which keeps the port
    port = int(worker["address"].rpartition(":")[2])
    with taken(port) as stranger:
        error = sandbox("up", code=4).stderr
        assert f"port {port} is taken by process {stranger}" in error
    sandbox("up")
    assert sandbox.status()["state"] == "running"
