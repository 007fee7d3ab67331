"""What a page is told when hosts go away and the cluster goes down and comes up again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.clusters import Cluster
from tests.conftest import Command, Sandbox, wait_for
from tests.page_client import FollowedPage

_SPEC = """name: two
hosts:
  alpha: {address: 127.0.0.2}
  beta: {address: 127.0.0.3}
jobs:
  worker: {tasks: 2, hosts: [alpha, beta]}
"""


CLUSTER = Cluster(_SPEC, is_played=True)


@contextlib.contextmanager
def open_page(cluster: Sandbox) -> Iterator[FollowedPage]:
    often = cluster.with_settings({"LIVE_RETRY_SECONDS": 0.3, "LIVE_POLL_SECONDS": 0.3, "LIVE_USAGE_SECONDS": 0.3})
    command = [*cluster.command, "dashboard", "--no-browser", "-o", "json"]
    environment = {**cluster.environment, **often}
    with Command(command, cwd=cluster.folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield FollowedPage(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()


@pytest.mark.slow
def test_a_host_goes_away_then_the_cluster_and_both_come_back(cluster: Sandbox) -> None:
    ready = {"": "running", "worker:0": "ready", "worker:1": "ready"}
    away = cluster.folder / "away" / "beta"
    away.parent.mkdir(exist_ok=True)
    with open_page(cluster) as page:
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

        cluster("scale", "worker=3", "--yes")
        wait_for(lambda: page.states == {**ready, "worker:2": "ready"})
        cluster("down")
        wait_for(lambda: page.view["problems"] == {"": "cluster 'two' went down"})
        assert page.states[""] == page.states["worker:2"] == "stopped"
        known = len(page.events)
        cluster("up", cluster.folder / "cluster.yaml")  # its topology is the first one again
        wait_for(lambda: page.states == ready and not page.view["problems"])
        wait_for(
            lambda: any(event["task"] == "worker:1" and event["event"] == "ready" for event in page.events[known:])
        )
        events = [json.dumps(event) for event in page.events]
        assert len({*events}) == len(events)
