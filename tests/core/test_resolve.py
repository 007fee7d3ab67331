"""Every key of a spec is used; ports, places, and tasks that arguments name; tests/spec/layouts has whole layouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tests.agent.hosts import task_of
from tests.core.clusters import topology_of
from tfcluster import settings
from tfcluster.core.environment import client_address
from tfcluster.core.forwarding import Forwarding, forwarders_of, with_unique_ports
from tfcluster.core.hosts import Host, is_same_place
from tfcluster.core.topology import PRIVATE, ClusterTopology, matching_tasks
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.base import Key
from tfcluster.spec.hosts import HostSpec
from tfcluster.spec.policies import Backoff, Logs, NotifySpec, RestartSpec
from tfcluster.spec.schema import Job, Spec

#: The parts of a spec that the topology has, and where they are in a spec.
PARTS: dict[type[BaseModel], tuple[str, ...]] = {
    Spec: (),
    HostSpec: ("hosts", "alpha"),
    Job: ("jobs", "worker"),
    RestartSpec: ("restart",),
    Backoff: ("restart", "backoff"),
    Logs: ("logs",),
    NotifySpec: ("notify",),
}
#: The keys that a part must have, with other values than the examples of docs/spec.md.
REQUIRED: dict[type[BaseModel], dict[str, Any]] = {Job: {"tasks": 1}, NotifySpec: {"command": "./other.sh"}}
#: The keys that the topology does not have, and why.
NOT_RESOLVED: dict[type[BaseModel], dict[str, str]] = {
    Spec: {
        "hostfile": "`hosts` has its hosts when a spec is loaded",
        "host": "each of `hosts` has its keys when a spec is loaded",
        "slurm": "its provider reads it",
        "kubernetes": "its provider reads it",
    },
}


def keys() -> list[Any]:
    """The keys of each part, with the example of docs/spec.md."""
    return [
        pytest.param(part, name, yaml.safe_load(f"{{{name}: {key.example}}}")[name], id=f"{part.__name__} {name}")
        for part in PARTS
        for name, field in part.model_fields.items()
        for key in field.metadata
        if isinstance(key, Key) and name not in NOT_RESOLVED.get(part, {})
    ]


def topology_with(part: type[BaseModel], values: dict[str, Any]) -> ClusterTopology:
    """The topology of a spec in which a part has some keys."""
    hosts: dict[str, Any] = {"localhost": {"address": "10.0.0.10"}, "alpha": {}, "beta": {}}
    spec: dict[str, Any] = {"hosts": hosts, "jobs": {"worker": {"tasks": 3}}}
    place = spec
    for name in PARTS[part]:
        place = place.setdefault(name, {})
    place.update(values)
    return topology_of(json.dumps(spec))


@pytest.mark.parametrize(("part", "name", "example"), keys())
def test_every_key_of_a_spec_changes_the_topology(part: type[BaseModel], name: str, example: Any) -> None:
    """A key that is forgotten would have no effect, without a word."""
    required = REQUIRED.get(part, {})
    before, after = (topology_with(part, values) for values in (required, {**required, name: example}))
    assert after != before, "use the key in core/resolve.py, or say in NOT_RESOLVED why not"


def test_a_masked_layout_shows_no_value_of_a_variable() -> None:
    topology = topology_of(
        "hosts: {alpha: {env: {A: a, B: b}}}\njobs: {a: {tasks: 1, max: 2, env: {A: {secret: s}, C: c}}}"
    ).masked()
    masked = {"A": "***", "B": "***", "C": "***"}
    assert [each.env for each in (*topology.tasks, *topology.reserved)] == [masked, masked]
    assert topology.hosts[0].env == {"A": "***", "B": "***"}


def test_choices_fill_only_what_they_name() -> None:
    before = topology_of("jobs: {ps: {tasks: 1}, worker: {tasks: 2, gpus: 2}, local: ['localhost:2222', '[::1]']}")
    after = before.with_allocation(
        {"/job:ps/task:0": 5000, "/job:local/task:1": 5001}, {"/job:worker/task:1": ["1", "GPU-5f"]}
    )
    first, second, third, fourth, last = before.tasks
    third = replace(third, gpu_ids=("1", "GPU-5f"))
    assert after.tasks == (replace(first, port=5000), second, third, fourth, replace(last, port=5001))
    assert after.tasks[4].address == "[::1]:5001"
    assert after.with_allocation({}, {}) == after


SHORTS = ["ps:0", "worker:0", "worker:1", "worker:10"]


def test_arguments_name_tasks_in_the_clusters_order_and_without_tasks_the_cluster_never_ran() -> None:
    for arguments, short_names in {
        "": "ps:0 worker:0 worker:1 worker:10",
        "/job:worker": "worker:0 worker:1 worker:10",
        "/job:worker/task:1": "worker:1",
        "worker:10 ps worker:10": "ps:0 worker:10",
        "worker:1 worker": "worker:0 worker:1 worker:10",
    }.items():
        assert matching_tasks(arguments.split(), SHORTS) == short_names.split()
    assert matching_tasks([], []) == []
    with pytest.raises(ClusterError) as caught:
        matching_tasks(["ps"], [])
    assert caught.value.hint == "The cluster never ran."


@pytest.mark.parametrize("name", ["work", "worker:2", "/job:worker/task:2", "worker:", ":0", "", "WORKER"])
def test_an_argument_that_names_nothing_is_a_usage_error_with_the_choices(name: str) -> None:
    with pytest.raises(ClusterError) as caught:
        matching_tasks(["ps:0", name], SHORTS)
    assert caught.value.message == f"no task {name!r}"
    assert caught.value.hint == "The tasks are ps:0, worker:0, worker:1, worker:10."
    assert caught.value.exit_code is ExitCode.USAGE


TLS_HOSTS = (Host("a", "10.0.0.1", tls_port=4433), Host("b", "10.0.0.2", tls_port=4433))
PRIVATE_CLUSTER = ClusterTopology("demo", "cluster.yaml", PRIVATE, (), hosts=TLS_HOSTS)


def test_every_task_has_a_port_of_its_own_and_every_host_ports_for_programs() -> None:
    tasks = (task_of("ps:0", "a"), task_of("worker:0", "b", port=2222), task_of("worker:1", "b"))
    chosen = with_unique_ports(replace(PRIVATE_CLUSTER, tasks=tasks), None)
    assert [task.port for task in chosen.tasks] == [2223, 2222, 2224]
    ports = [set(host.program_ports) for host in chosen.hosts]
    assert [len(each) for each in ports] == [settings.PROGRAM_PORTS] * 2
    assert not ports[0] & ports[1]
    # What is chosen stays, and what a running cluster still uses is not chosen again.
    more = replace(chosen, tasks=(*chosen.tasks[1:], task_of("worker:2", "a")))
    assert with_unique_ports(more, chosen).tasks[-1].port == 2225
    assert with_unique_ports(chosen, chosen) == chosen
    forwarders = forwarders_of(chosen)
    assert set(forwarders["a"].ports) == {2223, *ports[0]}
    routes = Forwarding("a", forwarders, Path("x"), 0.0).routes()
    assert {routes[port] for port in routes} == {"b"}
    assert {2222, 2224, *ports[1]} == set(routes)


def test_a_client_has_an_address_that_the_other_hosts_reach() -> None:
    chosen = with_unique_ports(replace(PRIVATE_CLUSTER, tasks=(task_of("ps:0", "a"), task_of("worker:0", "b"))), None)
    port = chosen.program_ports_on("b")[0]
    assert client_address(chosen, "b", port) == f"localhost:{port}"
    assert port in forwarders_of(chosen)["b"].ports
    assert client_address(replace(chosen, network="closed"), "b", 40000) == "10.0.0.2:40000"


def test_two_tasks_with_the_same_port_are_refused_and_one_host_needs_no_forwarders() -> None:
    tasks = (task_of("worker:0", "a", port=2222), task_of("worker:1", "b", port=2222))
    with pytest.raises(ClusterError, match="worker:0 on a and worker:1 on b both have port 2222"):
        with_unique_ports(replace(PRIVATE_CLUSTER, tasks=tasks), None)
    assert forwarders_of(replace(PRIVATE_CLUSTER, hosts=TLS_HOSTS[:1])) == {}
    assert forwarders_of(replace(PRIVATE_CLUSTER, network="closed")) == {}


def reached(connect: str) -> Host:
    return Host("beta", "10.0.0.2", connect=connect)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("/usr/bin/docker exec -i beta", "docker exec -i beta"),
        ("docker exec -i beta", "/opt/docker/bin/docker exec -i beta"),
        ("""/bin/sh -c 'exec "$0" "$@"' /usr/bin/srun -w beta""", """/bin/sh -c 'exec "$0" "$@"' srun -w beta"""),
        ("docker  exec -i beta", "docker exec -i 'beta'"),
    ],
)
def test_the_folder_of_a_program_on_path_is_no_part_of_a_place(before: str, now: str) -> None:
    assert is_same_place(reached(before), reached(now))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("/opt/a/enter beta", "/opt/b/enter beta"),
        ("docker exec -i beta", "podman exec -i beta"),
        ("docker exec -i beta", "docker exec -i beta -u tf"),
        ("docker exec -i beta", "docker exec -i gamma"),
        ("docker exec -w /srv/tf -i beta", "docker exec -w tf -i beta"),
        ("env -c line /usr/bin/enter", "env -c other enter"),
    ],
)
def test_another_way_is_another_place(before: str, now: str) -> None:
    assert not is_same_place(reached(before), reached(now))


def test_the_state_folder_and_ssh_are_compared_as_they_are() -> None:
    here = Host("beta", "10.0.0.2", ssh="beta", state="/srv/state")
    assert is_same_place(here, Host("beta", "10.0.0.3", ssh="beta", state="/srv/state"))
    assert not is_same_place(here, Host("beta", "10.0.0.2", ssh="beta", state="state"))
    assert not is_same_place(here, Host("beta", "10.0.0.2", ssh="/usr/beta", state="/srv/state"))
    assert not is_same_place(here, Host("beta", "10.0.0.2", connect="ssh beta", state="/srv/state"))
