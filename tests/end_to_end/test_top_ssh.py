"""`top` and the page with a cluster on this machine and on another host, which cannot be reached for a while."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Command, running
from tests.end_to_end.test_ssh import Over, over
from tests.screens import Terminal

_JOBS = "jobs:\n  worker: {tasks: 2, hosts: [localhost, alpha]}\n"
# Prints what the page is sent.
_READ_PAGE = """
import sys, urllib.request
base, _, token = sys.argv[1].partition("/#token=")
request = urllib.request.Request(base + sys.argv[2], headers={"Authorization": "Bearer " + token})
for line in urllib.request.urlopen(request):
    print(line.decode(), end="", flush=True)
"""


@pytest.fixture(scope="module")
def two(needs_sshd: None, way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """A worker on this machine and one on alpha."""
    with over(tmp_path_factory.mktemp("two"), "alpha", has_sshd=way == "ssh") as sandbox:
        sandbox("up", sandbox.spec(sandbox.text(("alpha",), _JOBS)))
        yield sandbox


@pytest.mark.slow
@pytest.mark.every_way
def test_top_shows_that_a_host_goes_away_and_comes_back(two: Over) -> None:
    with Terminal([*two.command, "top"], two.environment, two.folder, columns=100) as top:
        top.wait_for(
            "^ wide  running  2 of 2 tasks ready on 2 hosts",
            r"^ alpha +up +CPU +\d+% of \d+  memory \d",
            r"^ localhost +up +CPU +\d+% of \d+  memory \d",
            r"^worker:0 +localhost .*ready .* MiB",
            r"^worker:1 +alpha .*ready .* MiB",
            "q Quit",
        )
        with two.without("way", "alpha"):
            top.wait_for(r"^ alpha +unreachable since \d\d:\d\d:\d\d", r"^worker:1 +alpha .*unresponsive")
            # This machine is shown as it changes, and what it uses is measured.
            two("restart", "worker:0", "--yes", code=None)
            top.wait_for("localhost +worker:0 +stopping +restarting, requested by")
            top.wait_for(r"^worker:0 +localhost .*ready .* MiB", r"^ localhost +up +CPU +\d", "^ alpha +unreachable")
        top.wait_for(
            r"^ alpha +up +CPU +\d+% of \d+", r"^worker:1 +alpha .*ready .* MiB", "2 of 2 tasks ready on 2 hosts"
        )
        top.send("q")
        assert top.wait_for_end() == 0


@pytest.mark.slow
@pytest.mark.every_way
def test_the_page_is_told_that_a_host_goes_away_and_comes_back(two: Over) -> None:
    page = two.start("dashboard", "--no-browser", "-o", "json")
    url = json.loads(page.stdout.readline())["url"]
    read = [*two.network.command(sys.executable, "-c", _READ_PAGE), url]

    def read_until(stream: Command, has_arrived: Callable[[Any], bool]) -> None:
        data = (line.removeprefix("data: ") for line in stream.stdout if line.startswith("data: "))
        assert any(has_arrived(json.loads(each)) for each in data)

    def has_host(state: str) -> Callable[[Any], bool]:
        expected = {"alpha": state, "localhost": "up"}
        return lambda data: (
            "status" in data and expected == {host["host"]: host["state"] for host in data["status"]["hosts"]}
        )

    def has_line(data: Any) -> bool:
        return isinstance(data, list) and any("Started server" in each["line"] for each in data)

    with (
        running(*read, "/api/state", stdout=subprocess.PIPE) as states,
        running(*read, "/api/logs?tasks=worker:1", stdout=subprocess.PIPE) as lines,
    ):
        read_until(states, has_host("up"))
        read_until(lines, has_line)
        with two.without("way", "alpha"):
            read_until(states, has_host("unreachable"))
        read_until(states, has_host("up"))
        two("restart", "worker:1", "--yes")
        read_until(lines, has_line)
    page.terminate()
    assert page.wait(60) == 143
