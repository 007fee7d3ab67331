"""Another topology in place of one that is up: what stays, who knows whose address, and `scale`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.clusters import apply_plan, observed_on, restart_task, topology_of, up
from tfcluster.core.plan import ActionKind, PlannedAction, plan
from tfcluster.core.reconcile import merge_with_observed, scale
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode

PS = "/job:ps/task:0"


def workers(count: int, limit: int | None = None) -> str:
    return f"jobs: {{ps: {{tasks: 1}}, worker: {{tasks: {count}{f', max: {limit}' if limit else ''}}}}}"


def places(topology: ClusterTopology) -> dict[str, int | None]:
    """The ports that are kept for tasks that do not run."""
    return {task.short: task.port for task in topology.reserved}


def test_programs_do_not_know_addresses_that_max_reserves() -> None:
    topology = up(workers(2, 4)).topology
    assert topology.addresses() == {"ps": ["localhost:2222"], "worker": ["localhost:2223", "localhost:2224"]}
    assert len(topology.known_addresses()["worker"]) == 4


def test_allocated_gpus_stay_allocated_but_not_on_another_host() -> None:
    observed = up("jobs: {worker: {tasks: 2, gpus: 1}}")
    one = merge_with_observed(topology_of("jobs: {worker: {tasks: 3, gpus: 1}}"), observed)
    assert [task.gpu_ids for task in one.tasks] == [("worker:0-0",), ("worker:1-0",), ()]
    other = merge_with_observed(topology_of("jobs: {worker: {tasks: 1, gpus: 2, max: 2}}"), observed)
    assert [task.gpu_ids for task in (*other.tasks, *other.reserved)] == [(), ()]
    observed = up("jobs: {a: {tasks: 2, gpus: 1}}\nhosts: [alpha, beta]")
    topology = merge_with_observed(
        topology_of("jobs: {a: {tasks: 2, gpus: 1, hosts: [alpha]}}\nhosts: [alpha]"), observed
    )
    assert [task.gpu_ids for task in topology.tasks] == [("a:0-0",), ()]


def test_scaled_tasks_are_like_the_last_one_of_their_job() -> None:
    observed = up("jobs: {ps: {tasks: 1}, worker: {tasks: [localhost, '127.0.0.2'], cpus: 2, env: {A: b}}}")
    topology = scale(observed.topology, {"worker": 4, "ps": 2})
    assert [task.short for task in topology.tasks] == ["ps:0", "ps:1", "worker:0", "worker:1", "worker:2", "worker:3"]
    added = topology.tasks[-1]
    assert (added.address_host, added.port, added.cpus, added.env) == ("127.0.0.2", None, 2, {"A": "b"})
    assert topology.spec == observed.topology.spec


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"trainer": 1}, "cluster 'c' has no job 'trainer'"),
        ({"worker": 0, "ps": 0}, "no task of cluster 'c' would remain"),
        ({"worker": 1001}, "1002 tasks: a cluster has at most 1000"),
    ],
)
def test_what_cannot_be_scaled_to_is_a_usage_error(counts: dict[str, int], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        scale(up(workers(2)).topology, counts)
    assert caught.value.message == message
    assert caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


def on(host: str, operations: tuple[PlannedAction, ...]) -> list[PlannedAction]:
    return [each for each in operations if each.task is None or each.task.host == host]


THREE = "hosts: {alpha: {address: 10.0.0.1, env: {A: a, H: a}}, beta: {address: 10.0.0.2, env: {H: b}}, gamma: }"


def test_an_added_task_goes_on_the_host_whose_turn_it_is_with_the_environment_of_that_host() -> None:
    observed = up(f"jobs: {{ps: {{tasks: 1}}, worker: {{tasks: 1, hosts: [alpha, beta], env: {{A: job}}}}}}\n{THREE}")
    topology = scale(observed.topology, {"worker": 3, "ps": 3})
    assert {task.short: (task.host, task.address_host, task.env, task.from_host) for task in topology.tasks} == {
        "ps:0": ("alpha", "10.0.0.1", {"A": "a", "H": "a"}, ("A", "H")),
        "ps:1": ("beta", "10.0.0.2", {"H": "b"}, ("H",)),
        "ps:2": ("gamma", "gamma", {}, ()),
        "worker:0": ("alpha", "10.0.0.1", {"A": "job", "H": "a"}, ("H",)),
        "worker:1": ("beta", "10.0.0.2", {"A": "job", "H": "b"}, ("H",)),
        "worker:2": ("alpha", "10.0.0.1", {"A": "job", "H": "a"}, ("H",)),
    }


def test_a_job_that_the_spec_has_no_more_cannot_be_scaled() -> None:
    observed, _ = apply_plan(topology_of("jobs: {ps: {tasks: 1}}"), up(workers(1)))
    assert places(observed.topology) == {"worker:0": 2223}, "the ps knows it"
    with pytest.raises(ClusterError, match="has no job 'worker'"):
        scale(observed.topology, {"worker": 1})


JOBS: st.SearchStrategy[dict[str, dict[str, Any]]] = st.dictionaries(
    st.sampled_from(["ps", "worker", "chief"]),
    st.one_of(
        st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 2)).map(
            lambda drawn: {"tasks": drawn[0], "max": drawn[0] + drawn[1], "cpus": drawn[2]}
        ),
        st.integers(1, 4).map(lambda count: {"tasks": count}),
        st.lists(st.sampled_from([None, 2222, 2223, 2224, 2225]), min_size=1, max_size=3).map(
            lambda ports: {"tasks": ["localhost" if port is None else f"localhost:{port}" for port in ports]}
        ),
    ),
    min_size=1,
)


def _has_each_port_once(jobs: dict[str, dict[str, Any]]) -> bool:
    named = [address for job in jobs.values() if isinstance(job["tasks"], list) for address in job["tasks"]]
    named = [address for address in named if ":" in address]
    return len(named) == len(set(named))


NETWORKS = st.sampled_from(["closed", "closed", "closed", "open"])
HERE = st.builds(
    lambda jobs, network: json.dumps({"jobs": jobs, "network": network}), JOBS.filter(_has_each_port_once), NETWORKS
)
HOST_LISTS = st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=1, max_size=4)


def _on_hosts(jobs: dict[str, dict[str, Any]], network: str, names: list[str], lists: dict[str, list[str]]) -> str:
    """The jobs on the hosts of these names; those that have no addresses on their own list of them."""
    for job, value in jobs.items():
        if isinstance(value["tasks"], list):
            turns = [names[index % len(names)] for index in range(len(value["tasks"]))]
            parts = zip(turns, value["tasks"], strict=True)
            value["tasks"] = [address.replace("localhost", host) for host, address in parts]
        elif job in lists and set(lists[job]) <= set(names):
            value["hosts"] = lists[job]
    return json.dumps({"jobs": jobs, "network": network, "hosts": {name: {"env": {name: "x"}} for name in names}})


ON_HOSTS = st.builds(
    _on_hosts,
    JOBS.filter(_has_each_port_once),
    NETWORKS,
    HOST_LISTS,
    st.dictionaries(st.sampled_from(["ps", "worker", "chief"]), HOST_LISTS),
)
SPECS = st.one_of(HERE, ON_HOSTS)


@settings(max_examples=80, deadline=None)
@given(SPECS, st.lists(st.tuples(SPECS, st.lists(st.integers(0, 8), max_size=3)), min_size=1, max_size=5))
def test_after_every_plan_each_server_knows_every_other_and_none_was_restarted_in_vain(
    first: str, changes: list[tuple[str, list[int]]]
) -> None:
    """Plays servers that know what they were started with, through plans and restarts of their own."""
    observed = up(first)
    known = {name: observed.topology.known_addresses() for name in observed.generations}

    def knows(server: str, job: str, index: int, address: str) -> bool:
        addresses = known[server].get(job, [])
        return index < len(addresses) and addresses[index] == address

    for text, died in changes:
        for number in died:
            name = sorted(observed.generations)[number % len(observed.generations)]
            observed, known[name] = restart_task(observed, name), observed.topology.known_addresses()
        desired = topology_of(text)
        before, (observed, operations) = observed, apply_plan(desired, observed)
        for operation in operations:
            if operation.task is not None and operation.kind == ActionKind.RESTART and operation.has_unknown_peers:
                server = operation.task.name
                assert any(not knows(server, each.job, each.index, each.address) for each in observed.topology.tasks)
            if operation.task is not None and operation.kind == ActionKind.STOP:
                del known[operation.task.name]
        for operation in operations:
            if operation.task is not None and operation.kind in (ActionKind.START, ActionKind.RESTART):
                known[operation.task.name] = observed.topology.known_addresses()
        assert known.keys() == observed.generations.keys() == {task.name for task in desired.tasks}
        for server in known:
            assert all(knows(server, each.job, each.index, each.address) for each in observed.topology.tasks)
        # The observed topology is the desired one, and no other task can get an address that a server still knows.
        for task, there in zip(desired.tasks, observed.topology.tasks, strict=True):
            assert task.port in (None, there.port)
            assert (
                replace(task, port=there.port, gpu_ids=there.gpu_ids, valid_from_generation=there.valid_from_generation)
                == there
            )
        places = [(task.host, task.port) for task in (*observed.topology.tasks, *observed.topology.reserved)]
        assert len(places) == len(set(places))
        assert apply_plan(desired, observed)[1] == ()
        for host in {task.host for task in (*before.topology.tasks, *desired.tasks)}:
            alone = plan(observed.topology, observed_on(host, before))
            assert on(host, alone) == on(host, operations), "an agent sees its own part of the plan"
        restarted = {
            each.task.name for each in operations if each.task and each.kind in (ActionKind.RESTART, ActionKind.START)
        }
        for name in before.generations.keys() & known.keys():
            assert (before.generations[name] != observed.generations[name]) is (name in restarted)
