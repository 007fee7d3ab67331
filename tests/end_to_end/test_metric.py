"""tfcluster.metric in a script: its values are events of the run, also from the processes of `launch`."""

from __future__ import annotations

import json

from tests.conftest import Sandbox

SCRIPT = """
import sys
import tfcluster
assert "tensorflow" in sys.modules or "--cold" in sys.argv
for step in range(5):
    tfcluster.metric("loss", 1 / (step + 1), step)
tfcluster.metric("<script>alert(1)</script>", float("nan"), 0)
print("done")
"""


def test_a_script_reports_metrics(demo: Sandbox) -> None:
    demo.spec(SCRIPT, "reports.py")
    *events, result = map(json.loads, demo("run", "-o", "json", "reports.py").stdout.splitlines())
    points = [event for event in events if event["event"] == "metric"]
    assert [(each["name"], each["step"], each["value"]) for each in points[:2]] == [("loss", 0, 1.0), ("loss", 1, 0.5)]
    assert (points[-1]["name"], points[-1]["value"]) == ("<script>alert(1)</script>", None)
    assert len(points) == 6
    assert result["result"] == {"exit_code": 0, "metrics": {"loss": 0.2, "<script>alert(1)</script>": None}}
    attached = [json.loads(line) for line in demo("attach", result["run"], "-o", "json").stdout.splitlines()]
    assert [event for event in attached if event["event"] == "metric"] == points
    assert demo("run", "reports.py").stdout == "done\n", "metrics do not change what a script prints"


def test_the_processes_of_a_launch_report_metrics_by_task(demo: Sandbox) -> None:
    demo.spec("import tfcluster\ntfcluster.metric('loss', 0.5, 1)\n", "member.py")
    events = [json.loads(line) for line in demo("launch", "-o", "json", "member.py").stdout.splitlines()]
    points = {(each["task"], each["name"], each["value"]) for each in events if each["event"] == "metric"}
    assert points == {("worker:0", "loss", 0.5), ("worker:1", "loss", 0.5)}


def test_a_fresh_interpreter_reports_too_and_a_script_that_closes_everything_goes_on(demo: Sandbox) -> None:
    demo.spec(
        "import os, tfcluster\ntfcluster.metric('loss', 0.5, 1)\nos.closerange(3, 256)\n"
        "open(os.devnull), open(os.devnull)\ntfcluster.metric('loss', 0.4, 2)\nprint('on')\n",
        "closes.py",
    )
    events = [json.loads(line) for line in demo("run", "--cold", "-o", "json", "closes.py").stdout.splitlines()]
    assert [event["value"] for event in events if event["event"] == "metric"] == [0.5]
    assert [event["line"] for event in events if event["event"] == "output"] == ["on"]
    assert events[-1]["state"] == "succeeded"
