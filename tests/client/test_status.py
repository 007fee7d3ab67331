"""Which hosts the snapshot of a cluster takes the topology from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.project import Project
from tfcluster.client.resolve import find_cluster
from tfcluster.client.status import NoStatusError, take_snapshot
from tfcluster.errors import ExitCode
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import StatusReply, StatusRequest, TopologyRequest
from tfcluster.transport.errors import not_running


def with_generations(project: Project, generations: dict[str, int | None], ending: str = "") -> None:
    """Bring up a cluster whose hosts have these generations of its topology; None is a host that cannot be reached.

    The agents of the hosts `ending` end after they have sent their status.
    """
    hosts = ", ".join(generations)
    topology = project.bring_up(f"name: wide\nhosts: [{hosts}]\njobs: {{worker: {{tasks: {len(generations)}}}}}\n")
    project.agent.away = {host for host, generation in generations.items() if generation is None}
    project.agent.answer(
        StatusRequest,
        lambda request, host: [Reply(StatusReply(project.agent.status("wide", host), generations[host] or 0))],
    )
    project.agent.answer(
        TopologyRequest,
        lambda request, host: [
            not_running("wide") if host in ending else Reply(replace(topology, generation=generations[host] or 0))
        ],
    )


@pytest.mark.parametrize(
    ("generations", "latest", "asked"),
    [
        ({"a": 3, "b": 3, "c": 3}, 3, {"a": 1}),  # one host, whatever their number
        ({"a": 3, "b": 2, "c": 3}, 3, {"a": 1}),
        ({"a": 2, "b": 3, "c": 2}, 3, {"a": 1, "b": 1}),
        ({"a": None, "b": 3, "c": 3}, 3, {"b": 1, "c": 1}),
        ({"a": None, **dict.fromkeys("bcdef", 3)}, 3, {"b": 1, "c": 1, "d": 1}),
    ],
)
def test_the_topology_is_the_latest_that_a_host_has(
    project: Project, generations: dict[str, int | None], latest: int, asked: dict[str, int]
) -> None:
    with_generations(project, generations)
    snapshot = take_snapshot(find_cluster("wide"))
    assert snapshot.topology.generation == latest
    assert Counter(host for host, each in project.agent.requests if isinstance(each, TopologyRequest)) == asked
    assert set(snapshot.statuses) == {host for host, generation in generations.items() if generation is not None}


@pytest.mark.parametrize(
    ("generations", "ending", "latest"),
    [({"a": None, "b": 3, "c": 3}, "b", 3), ({"a": 2, "b": 3}, "b", 2), ({"a": None, "b": 3, "c": 3}, "bc", None)],
)
def test_a_host_that_goes_away_meanwhile_is_not_the_end_of_the_cluster(
    project: Project, generations: dict[str, int | None], ending: str, latest: int | None
) -> None:
    with_generations(project, generations, ending)
    if latest is None:
        with pytest.raises(NoStatusError) as caught:
            take_snapshot(find_cluster("wide"))
        assert caught.value.exit_code is ExitCode.UNREACHABLE
    else:
        snapshot = take_snapshot(find_cluster("wide"))
        assert snapshot.topology.generation == latest
        assert set(snapshot.statuses) == {host for host, generation in generations.items() if generation is not None}
