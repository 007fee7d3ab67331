"""What a page is told when hosts go away and the cluster goes down and comes up again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Command, Sandbox, make_sandbox, wait_for
from tests.page_client import FollowedPage

_PLAYED = (sys.executable, "-m", "tests.played")
_SPEC = """name: two
hosts:
  alpha: {address: 127.0.0.2}
  beta: {address: 127.0.0.3}
jobs:
  worker: {tasks: 2, hosts: [alpha, beta]}
"""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Sandbox]:
    """A worker on each of two hosts."""
    with make_sandbox(tmp_path, _PLAYED) as sandbox:
        sandbox("up", sandbox.spec(_SPEC))
        yield sandbox


@contextlib.contextmanager
def open_page(two: Sandbox) -> Iterator[FollowedPage]:
    often = two.with_settings({"LIVE_RETRY_SECONDS": 0.3, "LIVE_POLL_SECONDS": 0.3, "LIVE_USAGE_SECONDS": 0.3})
    command = [*two.command, "dashboard", "--no-browser", "-o", "json"]
    environment = {**two.environment, **often}
    with Command(command, cwd=two.folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield FollowedPage(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()


@pytest.mark.slow
def test_a_host_goes_away_then_the_cluster_and_both_come_back(two: Sandbox) -> None:
    ready = {"": "running", "worker:0": "ready", "worker:1": "ready"}
    away = two.folder / "away" / "beta"
    away.parent.mkdir(exist_ok=True)
    with open_page(two) as page:
        wait_for(lambda: page.states == ready)
        os.kill(page.task(1)["pid"], signal.SIGKILL)
        wait_for(lambda: page.task(1)["restarts"] == 1 and page.states == ready)
        wait_for(lambda: any(event["event"] == "died" and event["host"] == "beta" for event in page.events))
        wait_for(lambda: len(page.samples()) > 2)
        assert {"/job:worker/task:0", "/job:worker/task:1"} == {*page.samples()[-1]["tasks"]}

        away.touch()
        wait_for(lambda: page.states["worker:1"] == "unresponsive" and "beta" in page.view["problems"])
        assert page.task(1)["restarts"] == 1  # what was known of it last
        assert page.task(1)["last_exit"]["reason"] == "SIGKILL"
        assert page.states["worker:0"] == "ready"
        uptime = page.task(0)["uptime_s"]
        wait_for(lambda: page.task(0)["uptime_s"] > uptime)  # the other host goes on
        away.unlink()
        wait_for(lambda: page.states == ready and not page.view["problems"])

        two("scale", "worker=3", "--yes")
        wait_for(lambda: page.states == {**ready, "worker:2": "ready"})
        two("down")
        wait_for(lambda: page.view["problems"] == {"": "cluster 'two' went down"})
        assert page.states[""] == page.states["worker:2"] == "stopped"
        known = len(page.events)
        two("up", two.folder / "cluster.yaml")  # its topology is the first one again
        wait_for(lambda: page.states == ready and not page.view["problems"])
        wait_for(
            lambda: any(event["task"] == "worker:1" and event["event"] == "ready" for event in page.events[known:])
        )
        events = [json.dumps(event) for event in page.events]
        assert len({*events}) == len(events)


@pytest.mark.slow
def test_runs_of_a_cluster_that_is_down_and_a_page_before_it_is_up(two: Sandbox) -> None:
    script = two.spec("print('done')\n", "script.py")
    run = json.loads(two("run", "--detach", "-o", "json", script).stdout.splitlines()[0])["run"]
    two("wait", run)
    two("down")
    with open_page(two) as page:
        wait_for(lambda: page.states == {"": "stopped"})
        assert page.view["problems"] == {"": "cluster 'two' is not running"}
        wait_for(lambda: [record["run"] for record in page.view["runs"]] == [run])
        assert page.view["runs"][0]["state"] == "succeeded"
        two("up", two.folder / "cluster.yaml")
        wait_for(lambda: page.states == {"": "running", "worker:0": "ready", "worker:1": "ready"})
