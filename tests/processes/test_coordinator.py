"""The coordinator of a group, whose hosts are played by the test."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, running, wait_for
from tfcluster.processes.groups.link import GroupLink, Ports, Reserve, Start, Stop, connect
from tfcluster.processes.runs.run_plan import EVENTS
from tfcluster.transport.channel import readable_fds

SECRET = "ab" * 32
_COORDINATE = f"""
import sys
from pathlib import Path
from tfcluster.core.groups import Group, Member
from tfcluster.core.programs import ProgramTraits
from tfcluster.core.runs import RunOptions
from tfcluster.processes.groups.coordinator import GroupCoordinator
from tfcluster.processes.runs.run_plan import RunPlan
members = tuple(Member("worker", rank, rank, host, "127.0.0.1") for rank, host in enumerate(["beta", "gamma"]))
options = RunOptions("script", ProgramTraits(is_script=True), {{"path": "/x.py"}}, max_restarts=1)
plan = RunPlan("x-1", "demo", options, Path(sys.argv[1]), {{}}, "alpha:1", [], [], host="alpha")
GroupCoordinator(plan, Group(members, {{}}, "{SECRET}", "127.0.0.1"), None).run()
"""


def events(folder: Path) -> list[dict[str, Any]]:
    """The events that the coordinator has written."""
    path = folder / EVENTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def next_orders(link: GroupLink) -> list[Any] | None:
    """The next orders, which must arrive in a minute; None if the connection is closed."""
    assert readable_fds([link.fileno()], 60), "no order has arrived"
    return link.receive()


def test_members_that_were_told_to_start_are_stopped_if_a_host_is_lost_before_they_have(tmp_path: Path) -> None:
    """They would otherwise run beside those of the next attempt."""
    with running(sys.executable, "-c", _COORDINATE, str(tmp_path), cwd=ROOT):
        wait_for(lambda: events(tmp_path))
        address = events(tmp_path)[0]["address"]
        beta, gamma = (connect(address, SECRET, host) for host in ("beta", "gamma"))
        for port, link in enumerate((beta, gamma), 1):
            assert next_orders(link) == [Reserve()]
            link.send(Ports([port]))
        assert next_orders(beta) == next_orders(gamma) == [Start(0, {"worker": ["127.0.0.1:1", "127.0.0.1:2"]})]
        beta.close()
        [order] = next_orders(gamma) or []
        assert isinstance(order, Stop)
        gamma.close()
