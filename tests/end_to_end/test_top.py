"""`top` with real clusters on a terminal, also while a host is away; tests/ui/test_top.py has what it draws."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.clusters import Cluster, Hosts
from tests.conftest import Command, Sandbox, running
from tests.hosts import HostsSandbox
from tests.screens import ENTER, ESCAPE, Terminal
from tfcluster.os.process_handle import ProcessHandle

_SPEC = """name: two
hosts:
  alpha: {address: 127.0.0.2}
  beta: {address: 127.0.0.3}
jobs:
  ps: {tasks: 1, hosts: [alpha]}
  worker: {tasks: 2, hosts: [alpha, beta]}
"""
_READY = r"q Quit"


#: Only one test uses this cluster; it takes it down.
CLUSTER = Cluster(_SPEC, is_played=True)
HOSTS = Hosts(("alpha",), "jobs:\n  worker: {tasks: 2, hosts: [localhost, alpha]}\n")


def open_top(sandbox: Sandbox, columns: int = 80) -> Terminal:
    return Terminal([*sandbox.command, "top"], sandbox.environment, sandbox.folder, columns=columns)


def test_a_restart_a_log_another_agent_and_the_end(cluster: Sandbox) -> None:
    with open_top(cluster) as top:
        top.wait_for("^ two  running  3 of 3 tasks ready on 2 hosts", r"^worker:1 +beta .*ready", _READY)
        # What is measured arrives by itself.
        top.wait_for(r"^ alpha .* CPU +\d+% of \d+  memory \d", r"^ps:0 .* MiB")
        before = cluster.task("ps:0")["pid"]
        top.send("r")
        top.wait_for(r"tfcluster restart ps:0 --yes -c two", "LOST: the variables of ps:0")
        top.send("y")
        top.wait_for(r"done: tfcluster restart ps:0 --yes -c two", _READY)
        assert cluster.task("ps:0")["pid"] != before
        top.send(ENTER)
        top.send("ll")
        top.wait_for("grpc_serve", "logs ps:0 -f -c two --level info   following")  # the rest may be cut off
        top.send(ESCAPE)
        top.wait_for(r"^worker:1 +beta .*ready", _READY)
        agent = ProcessHandle.from_pid(cluster.recorded_agent("alpha"))
        assert agent is not None
        os.kill(agent.pid, signal.SIGKILL)
        # The view itself starts the next agent, which finds the tasks.
        top.wait_for(r"alpha +worker:0 +adopted", r"^worker:0 +alpha .*ready", r"^ alpha +up ")
        cluster("down")
        assert top.wait_for_end() == 3
    assert "error: cluster 'two' went down" in re.sub(r"\x1b\[[0-9;?]*[a-z]", "", top.raw.decode())
    assert "Traceback" not in top.raw.decode()


def test_without_a_terminal_or_a_cluster_there_is_one_error(sandbox: Sandbox) -> None:
    refused = (
        "error: `tfcluster top` requires a terminal\n"
        "hint: `tfcluster status` prints the same once, and `tfcluster status -o json` for programs.\n"
    )
    assert sandbox("top", code=2).stderr == refused
    redirected = ["/bin/sh", "-c", f"{shlex.join([*sandbox.command, 'top'])} 2>refused"]  # where it is drawn
    with Terminal(redirected, sandbox.environment, sandbox.folder) as top:
        assert top.wait_for_end() == 2
    assert (sandbox.folder / "refused").read_text() == refused
    with Terminal([*sandbox.command, "top", "-c", "none"], sandbox.environment, sandbox.folder) as top:
        assert top.wait_for_end() == 3
    assert b"\x1b[?1049h" not in top.raw


@pytest.mark.slow
def test_top_shows_that_a_host_goes_away_and_comes_back(hosts: HostsSandbox) -> None:
    with open_top(hosts, columns=100) as top:
        top.wait_for(
            "^ wide  running  2 of 2 tasks ready on 2 hosts",
            r"^ alpha +up +CPU +\d+% of \d+  memory \d",
            r"^ localhost +up +CPU +\d+% of \d+  memory \d",
            r"^worker:0 +localhost .*ready .* MiB",
            r"^worker:1 +alpha .*ready .* MiB",
            "q Quit",
        )
        with hosts.without("way", "alpha"):
            top.wait_for(r"^ alpha +unreachable since \d\d:\d\d:\d\d", r"^worker:1 +alpha .*unresponsive")
            # This machine is shown as it changes, and what it uses is measured.
            hosts("restart", "worker:0", "--yes")
            top.wait_for("localhost +worker:0 +stopping +restarting, requested by")
            top.wait_for(r"^worker:0 +localhost .*ready .* MiB", r"^ localhost +up +CPU +\d", "^ alpha +unreachable")
        top.wait_for(
            r"^ alpha +up +CPU +\d+% of \d+", r"^worker:1 +alpha .*ready .* MiB", "2 of 2 tasks ready on 2 hosts"
        )
        top.send("q")
        assert top.wait_for_end() == 0
    with hosts.without("way", "alpha"), open_top(hosts, columns=100) as top:  # in the beginning too
        top.wait_for("^ alpha +unreachable since", r"^worker:0 +localhost +.*ready")


@pytest.mark.slow
def test_the_page_is_told_that_a_host_goes_away_and_comes_back(hosts: HostsSandbox) -> None:
    page = hosts.start("dashboard", "--no-browser", "-o", "json")
    url = json.loads(page.stdout.readline())["url"]
    read = [*hosts.network.command(sys.executable, "-m", "tests.page_client"), url]

    def read_until(answers: Command, has_arrived: Callable[[Any], bool]) -> None:
        assert any(has_arrived(json.loads(each)) for each in answers.stdout)

    def has_host(state: str) -> Callable[[Any], bool]:
        expected = {"alpha": state, "localhost": "up"}
        return lambda view: expected == {host["host"]: host["state"] for host in view["status"]["hosts"]}

    def has_line(logs: Any) -> bool:
        return any("Started server" in each["line"] for each in logs["lines"])

    with (
        running(*read, "/api/view", stdout=subprocess.PIPE) as views,
        running(*read, "/api/logs?tasks=worker:1", stdout=subprocess.PIPE) as logs,
    ):
        read_until(views, has_host("up"))
        read_until(logs, has_line)
        with hosts.without("way", "alpha"):
            read_until(views, has_host("unreachable"))
        read_until(views, has_host("up"))
        hosts("restart", "worker:1", "--yes")
        read_until(logs, has_line)
    page.terminate()
    assert page.wait(60) == 143
