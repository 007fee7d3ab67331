"""Runs that a change of the cluster may end: `down` names them and asks, `scale` says what it cannot know."""

from __future__ import annotations

import re

import pexpect
import pytest

from tests.conftest import COMMAND, Sandbox, wait_for

# A script that uses worker:0 alone, if any.
SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


def test_down_asks_before_it_cancels_a_run_or_names_it_and_then_logs_and_runs_can_be_read(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: busy\njobs: {worker: {tasks: 1}}\n"))
    run = sandbox("run", "--detach", sandbox.spec(SLEEPS, "sleeps.py")).stdout.strip()
    terminal = sandbox.at_terminal(*COMMAND, "down", env={"TERM": "dumb"})
    terminal.expect(rf"busy: this cancels run {run} \((queued|running) for [^)]+\)\r\nContinue\? \[y/N\]: ")
    terminal.sendline("n")
    terminal.expect("busy: nothing was stopped")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 1
    assert sandbox.status()["state"] == "running"
    wait_for(lambda: [each["state"] for each in sandbox.status()["runs"]] == ["running"])
    named = rf"busy: this cancels run {run} \(running for [^)]+\)"
    shown = sandbox("down", "-o", "json")
    assert re.search(named, shown.stderr)
    assert shown.stdout == '{"cluster": "busy", "state": "stopped"}\n'
    assert [each["state"] for each in sandbox.json("runs", "-c", "busy")] == ["cancelled"]

    assert "Started server" in sandbox("logs", "-c", "busy").stdout
    with sandbox.start("logs", "-c", "busy") as reader:
        reader.stdout.close()
        assert "Traceback" not in reader.stderr.read(), "a broken pipe is no error"
        assert reader.wait(60) in (0, 1)
    wait_for(lambda: not sandbox.leftovers())
    assert sandbox("down", code=3).stderr.splitlines() == [
        "error: cluster 'busy' is not running",
        "hint: Start it with `tfcluster up`, or choose another with -c NAME.",
    ]
    assert sandbox("status", code=3).stdout == ""


@pytest.mark.slow
def test_down_does_not_ask_with_yes_or_without_runs(sandbox: Sandbox) -> None:
    for has_run in (True, False):
        sandbox("up", sandbox.spec("name: busy\njobs: {worker: {tasks: 1}}\n"))
        if has_run:
            sandbox("run", "--detach", sandbox.spec(SLEEPS, "sleeps.py"))
        terminal = sandbox.at_terminal(*COMMAND, "down", *(["--yes"] if has_run else []), env={"TERM": "dumb"})
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0
        assert ("this cancels run sleeps-" in terminal.before) is has_run


@pytest.mark.slow
def test_scale_says_that_a_script_may_not_use_the_tasks(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: busy\njobs: {ps: {tasks: 1}, worker: {tasks: 2}}\n"))
    run = sandbox("run", "--detach", sandbox.spec(SLEEPS, "sleeps.py")).stdout.strip()
    lost = f"run {run}, if it uses these tasks"
    refused = sandbox("scale", "worker=1", code=2)
    assert f"cluster 'busy' would lose {lost}: nothing was changed" in refused.stderr
    assert f"LOST: {lost}" in sandbox("scale", "worker=1", "--dry-run").stdout
    sandbox("scale", "worker=1", "--yes")
    wait_for(lambda: [each["state"] for each in sandbox.status()["runs"]] == ["running"])
