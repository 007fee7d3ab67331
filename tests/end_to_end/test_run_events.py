"""The events of runs that docs/events.md describes have the fields that it names."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest

from tests.conftest import ROOT, Sandbox

#: The fields of each kind of event, and those that are left out if they have no value.
FIELDS: dict[str, set[str]] = {}
OPTIONAL: dict[str, set[str]] = {}
for _section in re.split(r"^## `", (ROOT / "docs" / "events.md").read_text(), flags=re.MULTILINE)[1:]:
    _rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", _section, re.MULTILINE)
    FIELDS[_section.partition("`")[0]] = {name for name, _ in _rows}
    OPTIONAL[_section.partition("`")[0]] = {name for name, kind in _rows if kind.endswith("optional")}

SCRIPT = """
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
    events: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    for event in events:
        required = FIELDS[event["event"]] - OPTIONAL[event["event"]]
        assert required <= event.keys() - {"event"} <= FIELDS[event["event"]], event
    return {event["event"] for event in events}


def test_events_have_the_fields_of_the_page(demo: Sandbox) -> None:
    script = demo.folder / "reports.py"
    script.write_text(SCRIPT)
    kinds = check(demo("run", "-o", "json", script, "0").stdout)
    kinds |= check(demo("run", "-o", "json", script, "3", code=3).stdout)
    kinds |= check(demo("run", "graph", "--log-placement", "-o", "json").stdout)
    kinds |= check(demo("run", "pi", "--samples", "1e6", "-o", "json").stdout)
    kinds |= check(demo("launch", "-o", "json", "--max-restarts", "1", script, "3", code=3).stdout)
    assert kinds == {
        "run",
        "output",
        "metric",
        "error",
        "graph",
        "placement",
        "progress",
        "member",
        "restart",
        "result",
    }


@pytest.mark.slow
def test_events_of_a_run_that_waits_and_is_ended_have_the_fields_of_the_page(sandbox: Sandbox) -> None:
    sandbox(
        "up", sandbox.spec("jobs: {worker: {tasks: 2}}\nrestart: {policy: never}\n"), env=sandbox.with_settings(QUICK)
    )
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
