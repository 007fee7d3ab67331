"""What runs report: the values of tfcluster.metric, and events with the fields that docs/events.md names."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.conftest import ROOT, SCRIPTS, Sandbox, lines_of, wait_for
from tfcluster import settings

#: In which the table of runs fits, however long a run waited.
WIDE = {"COLUMNS": "500"}
SCRIPT = """
import sys
import tfcluster
assert "tfcluster.processes.runs.fork_server" in sys.modules or "--cold" in sys.argv
for step in range(5):
    tfcluster.metric("loss", 1 / (step + 1), step)
tfcluster.metric("<script>alert(1)</script>", float("nan"), 0)
print("done")
"""


def test_a_script_reports_metrics(demo: Sandbox) -> None:
    demo.spec(SCRIPT, "reports.py")
    *events, result = demo.json_lines("run", "reports.py")
    points = [event for event in events if event["event"] == "metric"]
    assert [(each["name"], each["step"], each["value"]) for each in points[:2]] == [("loss", 0, 1.0), ("loss", 1, 0.5)]
    assert (points[-1]["name"], points[-1]["value"]) == ("<script>alert(1)</script>", None)
    assert len(points) == 6
    assert result["result"] == {"exit_code": 0, "metrics": {"loss": 0.2, "<script>alert(1)</script>": None}}
    attached = demo.json_lines("attach", result["run"])
    assert [event for event in attached if event["event"] == "metric"] == points
    assert demo("run", "reports.py").stdout == "done\n", "metrics do not change what a script prints"


# Reports, and then ends as its argument says. Of what it reports after the first points, only some is sent at once.
ENDS = (SCRIPTS / "records_and_ends.py").read_text()


# What is in a result of a process that could send nothing more.
KEPT = [1 / (step + 1) for step in range(settings.METRIC_POINTS - 1, 400)]


@pytest.mark.slow
def test_a_script_that_fails_has_its_latest_metrics_in_its_result(demo: Sandbox) -> None:
    demo.spec(ENDS, "ends.py")
    result = json.loads(demo("run", "-o", "json", "ends.py", "3", code=3).stdout.splitlines()[-1])
    assert result["result"] == {"exit_code": 3, "metrics": {"loss": 0.0025}}
    assert demo.json("runs", result["run"])["result"] == result["result"]
    assert "metrics    loss=0.0025" in demo("runs", result["run"]).stdout.splitlines()
    result = json.loads(demo("run", "-o", "json", "ends.py", "kill", code=137).stdout.splitlines()[-1])
    assert result["result"]["metrics"]["loss"] in KEPT


@pytest.mark.slow
def test_a_script_that_is_interrupted_or_cancelled_has_its_latest_metrics_too(demo: Sandbox) -> None:
    demo.spec(ENDS, "ends.py")
    command = demo.start("run", "ends.py", "wait")
    assert command.stdout.readline() == "waits\n"
    command.send_signal(signal.SIGINT)
    assert command.wait() == 130
    result = demo.last_run()["result"]
    assert result["exit_code"] == 130
    assert result["metrics"]["loss"] in KEPT
    run = demo("run", "--detach", "ends.py", "wait").stdout.strip()
    wait_for(lambda: "waits" in demo("logs", run).stdout)
    assert demo.json("runs", run)["result"]["metrics"]["loss"] in KEPT
    assert re.search(rf"^{run} +ends.py +running .* loss=0.00\d+$", demo("runs", env=WIDE).stdout, re.MULTILINE)
    demo("cancel", run)
    assert demo("attach", run, code=1).stderr.startswith(f"{run} was cancelled after ")
    record = demo.json("runs", run)
    assert (record["state"], list(record["result"])) == ("cancelled", ["metrics"])
    assert record["result"]["metrics"]["loss"] in KEPT


def test_the_processes_of_a_launch_report_metrics_by_task(demo: Sandbox) -> None:
    demo.spec("import tfcluster\ntfcluster.metric('loss', 0.5, 1)\n", "member.py")
    *events, result = demo.json_lines("launch", "member.py")
    points = {(each["task"], each["name"], each["value"]) for each in events if each["event"] == "metric"}
    assert points == {("worker:0", "loss", 0.5), ("worker:1", "loss", 0.5)}
    metrics = {"worker:0": {"loss": 0.5}, "worker:1": {"loss": 0.5}}
    assert result["result"] == {"exit_code": 0, "restarts": 0, "metrics": metrics}
    assert "result     worker:0: loss=0.5; worker:1: loss=0.5" in demo("runs", result["run"]).stdout.splitlines()


@pytest.mark.slow
def test_a_launch_that_fails_or_is_cancelled_has_its_latest_metrics(demo: Sandbox) -> None:
    demo.spec(ENDS, "ends.py")
    result = json.loads(demo("launch", "-o", "json", "ends.py", "3", code=3).stdout.splitlines()[-1])["result"]
    metrics = result.pop("metrics")
    assert metrics[result["task"]] == {"loss": 0.0025}
    assert result["exit_code"] == 3
    run = demo("launch", "--detach", "ends.py", "wait").stdout.strip()
    wait_for(lambda: demo("logs", run).stdout.count("waits") == 2)
    demo("cancel", run)
    demo("attach", run, code=1)
    result = demo.json("runs", run)["result"]
    assert sorted(result.pop("metrics")) == ["worker:0", "worker:1"]
    assert result == {}


def test_a_fresh_interpreter_reports_too_and_a_script_that_closes_everything_goes_on(demo: Sandbox) -> None:
    demo.spec(
        "import os, tfcluster\ntfcluster.metric('loss', 0.5, 1)\nos.closerange(3, 256)\n"
        "open(os.devnull), open(os.devnull)\ntfcluster.metric('loss', 0.4, 2)\nprint('on')\n",
        "closes.py",
    )
    events = demo.json_lines("run", "--cold", "closes.py")
    assert [event["value"] for event in events if event["event"] == "metric"] == [0.5]
    assert [event["line"] for event in events if event["event"] == "output"] == ["on"]
    assert events[-1]["state"] == "succeeded"


#: The fields of each kind of event, and those that are left out if they have no value.
FIELDS: dict[str, set[str]] = {}
OPTIONAL: dict[str, set[str]] = {}
for _section in re.split(r"^## `", (ROOT / "docs" / "events.md").read_text(), flags=re.MULTILINE)[1:]:
    _rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", _section, re.MULTILINE)
    FIELDS[_section.partition("`")[0]] = {name for name, _ in _rows}
    OPTIONAL[_section.partition("`")[0]] = {name for name, kind in _rows if kind.endswith("optional")}

EVENTS_SCRIPT = """
import sys, tfcluster
tfcluster.metric("loss", 0.5, 1)
print("hello")
sys.exit(int(sys.argv[1]))
"""

#: Waits for a server, then forever, inside TensorFlow.
WAITS = """
import os
import tensorflow as tf
with tf.Graph().as_default(), tf.compat.v1.Session(os.environ["TFCLUSTER_MASTER"]) as session:
    session.run(tf.constant(3.0) * 2)
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    session.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())
"""
QUICK = {"WAIT_CHECK_SECONDS": 0.3, "WAIT_UNEXPLAINED_SECONDS": 0.6, "WAIT_REPEAT_SECONDS": 0.5}


def check(output: str) -> set[str]:
    """Compare the fields of events with the page, and return their kinds."""
    events = lines_of(output)
    for event in events:
        required = FIELDS[event["event"]] - OPTIONAL[event["event"]]
        assert required <= event.keys() - {"event"} <= FIELDS[event["event"]], event
    return {event["event"] for event in events}


def test_events_have_the_fields_of_the_page(demo: Sandbox) -> None:
    script = demo.folder / "reports.py"
    script.write_text(EVENTS_SCRIPT)
    kinds = check(demo("run", "-o", "json", script, "0").stdout)
    kinds |= check(demo("run", "-o", "json", script, "3", code=3).stdout)
    kinds |= check(demo("run", "graph", "--log-placement", "-o", "json").stdout)
    kinds |= check(demo("run", "pi", "--samples", "1e6", "-o", "json").stdout)
    kinds |= check(demo("launch", "-o", "json", "--max-restarts", "1", script, "3", code=3).stdout)
    assert kinds == {
        *["run", "output", "metric", "error", "graph", "placement", "progress", "member", "restart", "result"]
    }


@pytest.mark.slow
def test_events_of_a_run_that_waits_and_is_ended_have_the_fields_of_the_page(sandbox: Sandbox) -> None:
    spec = sandbox.spec("jobs: {worker: {tasks: 2}}\nrestart: {policy: never}\n")
    sandbox("up", spec, env=sandbox.with_settings(QUICK))
    server = sandbox.task("worker:1")["pid"]
    os.kill(server, signal.SIGSTOP)
    command = sandbox.start("run", "script", "-o", "json", sandbox.spec(WAITS, "waits.py"))
    lines: list[str] = []

    def read_until(*kinds: str) -> None:
        left = set(kinds)
        while left:
            lines.append(command.stdout.readline())
            left.discard(json.loads(lines[-1])["event"])

    read_until("waiting")
    os.kill(server, signal.SIGCONT)
    read_until("waiting_ended")
    sandbox.wait_until("running")  # only a task that has answered can stop answering
    os.kill(server, signal.SIGKILL)
    read_until("task_down", "waiting")
    command.send_signal(signal.SIGINT)
    read_until("interrupt")
    command.terminate()
    lines += command.communicate(timeout=60)[0].splitlines(keepends=True)
    assert command.returncode == 143
    assert "result" in check("".join(lines))
    [run] = sandbox.json("runs")
    assert run["state"] == "cancelled"
