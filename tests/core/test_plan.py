"""The actions that `up` plans for a desired topology and an observed state."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import pytest

from tests.core.clusters import apply_plan, observed_on, observed_state, topology_of, up, with_ports
from tfcluster.core.plan import data_losses, kept_servers, plan, summary
from tfcluster.core.reconcile import ObservedState, merge_with_observed, scale
from tfcluster.core.states import TaskState
from tfcluster.core.status import LastExit
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.protocol.serialization import decode, to_json

SPEC = "{name: demo, jobs: {ps: {tasks: 1}, worker: ['localhost:2223', '[::1]:2224']}}"
PS, WORKER = "ps: {tasks: 1}", "worker: {tasks: 2}"
MUST = "it must know the address of"


def spec(*jobs: str, **other: str) -> str:
    return f"{{name: demo, jobs: {{{', '.join(jobs)}}}{''.join(f', {key}: {value}' for key, value in other.items())}}}"


def printed(text: str, observed: ObservedState, spec_file: str = "cluster.yaml") -> list[str]:
    desired = topology_of(text, spec_file)
    return [str(operation).replace(" on localhost at localhost", "") for operation in apply_plan(desired, observed)[1]]


def test_a_new_cluster_starts_every_task_in_order() -> None:
    assert [str(operation) for operation in plan(with_ports(topology_of(SPEC)), None)] == [
        "start ps:0 on localhost at localhost:2222: new",
        "start worker:0 on localhost at localhost:2223: new",
        "start worker:1 on localhost at [::1]:2224: new",
    ]


HOSTS = "{alpha: {address: 10.0.0.1}, beta: {address: 10.0.0.2}}"
#: By what a spec has changed: the spec before and after, and the operations.
CHANGES = {
    "cpus": (
        spec(PS, WORKER),
        spec("ps: {tasks: 1, cpus: 2}", "worker: {tasks: 2, cpus: 2}"),
        [
            "restart ps:0:2222: cpus 1 -> 2; LOST: the variables of ps:0",
            "restart worker:0:2223: cpus 1 -> 2",
            "restart worker:1:2224: cpus 1 -> 2",
        ],
    ),
    "environment, without its values": (
        spec(PS, "worker: {tasks: 1, env: {A: secret, B: x, C: y}}"),
        spec(PS, "worker: {tasks: 1, env: {A: geheim, C: y, D: z}}"),
        ["restart worker:0:2223: env A changed, env B removed, env D added"],
    ),
    "threads, without the variables that limit them": (
        spec(PS, "worker: {tasks: 1, threads: 2}"),
        spec(PS, "worker: {tasks: 1, env: {A: a}}"),
        ["restart worker:0:2223: threads 2 -> none, env A added"],
    ),
    "gpus, and without a ps any task may hold variables": (
        spec("worker: {tasks: 1}"),
        spec("worker: {tasks: 1, gpus: 1}"),
        ["restart worker:0:2222: gpus 0 -> 1; LOST: the variables of worker:0"],
    ),
    "a port left out is the one that there is": (spec("ps: ['localhost:2222']", WORKER), spec(PS, WORKER), []),
    "and the other way round": (spec(PS, WORKER), spec("ps: ['localhost:2222']", WORKER), []),
    "a port": (
        spec(PS, "worker: ['localhost:2223', 'localhost:2224']"),
        spec(PS, "worker: ['localhost:2300', 'localhost:2224']"),
        [
            f"restart ps:0:2222: {MUST} worker:0; LOST: the variables of ps:0",
            "restart worker:0:2300: port 2223 -> 2300",
            f"restart worker:1:2224: {MUST} worker:0",
        ],
    ),
    "a port that another task had by choice": (
        spec(PS, WORKER),
        spec("ps: {tasks: 2}", "worker: [localhost, 'localhost:2222']"),
        [
            f"restart ps:0:2225: port 2222 -> 2225, {MUST} ps:1, worker:1; LOST: the variables of ps:0",
            f"restart worker:0:2223: {MUST} ps:0, ps:1, worker:1",
            f"restart worker:1:2222: port 2224 -> 2222, {MUST} ps:0, ps:1",
            "start ps:1:2226: new",
        ],
    ),
    "an address, and the network": (
        spec("worker: ['localhost:2222']"),
        spec("worker: ['127.0.0.1:2222']", network="open"),
        [
            "restart worker:0 on localhost at 127.0.0.1:2222: address localhost -> 127.0.0.1, "
            "network closed -> open; LOST: the variables of worker:0"
        ],
    ),
    "growing within max": (
        spec("ps: {tasks: 1, max: 2}", "worker: {tasks: 2, max: 4}"),
        spec("ps: {tasks: 2, max: 2}", "worker: {tasks: 4, max: 4}"),
        ["start ps:1:2225: new", "start worker:2:2226: new", "start worker:3:2227: new"],
    ),
    "growing beyond what servers know": (
        spec(PS, "worker: {tasks: 1}"),
        spec(PS, "worker: {tasks: 8}"),
        [
            f"restart ps:0:2222: {MUST} worker:1, worker:2, worker:3, worker:4 and 3 more; LOST: the variables of ps:0",
            f"restart worker:0:2223: {MUST} worker:1, worker:2, worker:3, worker:4 and 3 more",
            *(f"start worker:{index}:{2223 + index}: new" for index in range(1, 8)),
        ],
    ),
    "shrinking": (
        spec("ps: {tasks: 2}", WORKER),
        spec(PS, "worker: {tasks: 1}"),
        ["stop ps:1:2223: removed; LOST: the variables of ps:1", "stop worker:1:2225: removed"],
    ),
    "another job": (
        spec(PS, WORKER),
        spec(PS, "trainer: {tasks: 1}"),
        [
            "stop worker:0:2223: removed",
            "stop worker:1:2224: removed",
            f"restart ps:0:2222: {MUST} trainer:0; LOST: the variables of ps:0",
            "start trainer:0:2225: new",
        ],
    ),
    "restart policy, and the order of the jobs": (
        spec(PS, WORKER),
        spec("worker: {tasks: 2, restart: {policy: never}}", PS),
        ["update worker:0:2223: restart policy changed", "update worker:1:2224: restart policy changed"],
    ),
    "max, and how much of the logs is kept": (
        spec(PS, "worker: {tasks: 2, max: 4}"),
        spec("ps: {tasks: 1, max: 1}", "worker: {tasks: 2, max: 3}", logs="{count: 2}"),
        ["update: logs changed", "update: max of worker 4 -> 3", "update: max of ps none -> 1"],
    ),
    "a ps that goes to another host, and nothing is left on the first one": (
        spec("ps: {tasks: 1, hosts: [alpha]}", "a: {tasks: 1, hosts: [beta]}", hosts=HOSTS),
        spec("a: {tasks: 1, hosts: [beta]}", "ps: {tasks: 1, hosts: [beta]}", hosts=HOSTS),
        [
            "stop ps:0 on alpha at 10.0.0.1:2222: host alpha -> beta; LOST: the variables of ps:0",
            f"restart a:0 on beta at 10.0.0.2:2222: {MUST} ps:0",
            "start ps:0 on beta at 10.0.0.2:2223: host alpha -> beta",
            "update: host alpha removed",
            "update: hosts of ps changed",
        ],
    ),
    "the address and the environment of a host, without its values": (
        spec("a: {tasks: 1}", hosts="{alpha: {address: 10.0.0.1, env: {A: geheim}}}"),
        spec("a: {tasks: 1}", hosts="{alpha: {address: 10.0.0.9, env: {A: secret}}}"),
        [
            "restart a:0 on alpha at 10.0.0.9:2223: port 2222 -> 2223, address 10.0.0.1 -> 10.0.0.9, env A changed; "
            "LOST: the variables of a:0",
            "update: host alpha changed",
        ],
    ),
    "what needs no new process": (
        spec("a: {tasks: 1}", hosts="{alpha: {env: {A: x}}}"),
        spec("a: {tasks: 1, env: {A: {secret: x}}}", hosts="{alpha: {ssh: b}, beta: }"),
        [
            "update: host alpha changed",
            "update: host beta added",
            "update: hosts of a changed",
            "update a:0 on alpha at alpha:2222: which env is secret changed, which env is the host's changed",
        ],
    ),
    "growing within max over hosts, and keys of the cluster": (
        spec("a: {tasks: 1, max: 3}", hosts=HOSTS),
        spec("a: {tasks: 3, max: 3}", hosts=HOSTS, lease="60", warm="false"),
        [
            "start a:1 on beta at 10.0.0.2:2222: new",
            "start a:2 on alpha at 10.0.0.1:2223: new",
            "update: warm true -> false",
            "update: lease none -> 60.0",
        ],
    ),
}


@pytest.mark.parametrize(("before", "after", "operations"), CHANGES.values(), ids=CHANGES)
def test_a_plan_restarts_only_what_changed(before: str, after: str, operations: list[str]) -> None:
    observed = up(before)
    assert printed(before, observed) == []
    assert printed(after, observed) == operations
    assert printed(after, apply_plan(topology_of(after), observed)[0]) == []


#: A cluster that has a value for each field that a plan compares.
EVERYTHING = """
hosts: {alpha: {env: {H: h}}}
jobs: {a: {tasks: 2, max: 3, gpus: 1, env: {A: a, B: {secret: b}}}}
lease: 60
notify: {webhook: http://localhost, command: "true"}
"""
#: The fields that a plan does not compare, and why.
NOT_COMPARED = {
    Task: {
        "job": "tasks are compared by name, which has the job",
        "index": "tasks are compared by name, which has the index",
        "gpu_ids": "a task keeps its GPUs as long as `host` and `gpus` stay, and these are compared",
        "valid_from_generation": "merging sets it; whether a server knows an address is compared by `is_valid_in`",
        "valid_until_generation": "merging sets it; whether a server knows an address is compared by `is_valid_in`",
    },
    ClusterTopology: {
        "cluster": "the cluster is observed by this name",
        "tasks": "the fields of each task are compared",
        "reserved": "no server runs there, and whether servers know an address is compared by `is_valid_in`",
        "generation": "it counts the changes; this is the next one",
        "kept": "it says what the plan does not touch, so it follows from the plan",
        "has_servers": "without servers, each task is stopped, and is therefore started",
    },
}

T = TypeVar("T")


def another(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value[:-1], another(value[-1]))
    if isinstance(value, dict):
        key = next(iter(value))
        return {**value, key: another(value[key])}
    assert is_dataclass(value), "give the field a value in EVERYTHING, or `another` its type"
    return with_another(value, fields(value)[0].name)


def with_another(value: T, name: str) -> T:
    """The dataclass with another value in one of its fields."""
    return replace(value, **{name: another(getattr(value, name))})  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, each.name) for kind, exempt in NOT_COMPARED.items() for each in fields(kind) if each.name not in exempt],
)
def test_a_plan_compares_every_field_of_a_task_and_of_a_topology(kind: type, name: str) -> None:
    """A field that the plan forgets would change only at the next `down` and `up`, without a word."""
    observed = up(EVERYTHING)
    before = replace(observed.topology, folder="/here")
    observed = replace(observed, topology=before)
    first, *others = before.tasks
    desired = (
        replace(before, tasks=(with_another(first, name), *others)) if kind is Task else with_another(before, name)
    )
    assert plan(before, observed) == ()
    # The other tasks may have to know another address of the first one.
    actions = [each for each in plan(desired, observed) if kind is not Task or each.task == desired.tasks[0]]
    assert actions, "compare the field in core/plan.py, or say in NOT_COMPARED why not"


def test_what_its_host_does_not_have_is_started_and_another_spec_file_is_an_update() -> None:
    text = spec("a: {tasks: 2}", hosts=HOSTS)
    observed = observed_on("alpha", up(text))  # as the agent of beta says that nothing is up there
    assert printed(text, observed) == ["start a:1 on beta at 10.0.0.2:2222: its host does not have it"]
    observed = up(SPEC, "a/old.yaml")
    assert printed(SPEC, observed, "a/new.yaml") == ["update: spec file a/old.yaml -> a/new.yaml"]
    assert printed(SPEC, observed, "old.yaml") == [], "perhaps another path of the same file"


@pytest.mark.parametrize("state", sorted(set(TaskState) - {TaskState.FAILED, TaskState.STOPPED}))
def test_a_task_that_runs_or_restarts_by_itself_is_not_changed(state: TaskState) -> None:
    topology = with_ports(topology_of(SPEC))
    assert printed(SPEC, observed_state(topology, states={task.short: state for task in topology.tasks})) == []


def test_a_task_that_has_no_process_is_started_at_its_kept_port_with_its_cause_and_what_changed() -> None:
    states = {"ps:0": TaskState.FAILED, "worker:1": TaskState.STOPPED}
    observed = observed_state(with_ports(topology_of(SPEC)), states=states, last_exit=LastExit("SIGKILL", 1.0, "why"))
    assert printed(SPEC, observed) == [
        "start ps:0:2222: it is failed (SIGKILL)",
        "start worker:1 on localhost at [::1]:2224: it is stopped (SIGKILL)",
    ]
    observed = observed_state(with_ports(topology_of(SPEC)), states={"ps:0": TaskState.STOPPED})
    after = SPEC.replace("{tasks: 1}", "{tasks: 1, cpus: 2}")
    assert printed(after, observed) == ["start ps:0:2222: it is stopped, cpus 1 -> 2"]


def test_a_server_without_a_process_loses_nothing_and_learns_the_addresses_anyway() -> None:
    observed = observed_state(with_ports(topology_of(spec(PS, WORKER))), states={"ps:0": TaskState.BACKING_OFF})
    assert printed(spec("ps: {tasks: 1, cpus: 2}", WORKER), observed) == ["restart ps:0:2222: cpus 1 -> 2"]
    assert not [line for line in printed(spec(PS, "worker: {tasks: 3}"), observed) if "ps:0" in line]


def test_runs_that_would_fail_are_named() -> None:
    runs = {"pi-3f9a": ["/job:worker/task:0", "/job:worker/task:1"], "mean-1": ["/job:worker/task:1"]}
    observed = observed_state(with_ports(topology_of(spec(PS, WORKER))), runs=runs)
    desired = merge_with_observed(topology_of(spec(PS, "worker: {tasks: 1, cpus: 2}")), observed)
    operations = plan(desired, observed)
    assert [operation.data_loss for operation in operations] == [("run pi-3f9a", "run mean-1"), ("run pi-3f9a",)]
    assert data_losses(operations) == ["run pi-3f9a", "run mean-1"]


def test_kept_servers_are_those_that_no_action_touches_with_their_generation() -> None:
    observed = observed_state(
        with_ports(topology_of(spec(PS, "worker: {tasks: 4}"))),
        states={"worker:1": TaskState.BACKING_OFF, "worker:2": TaskState.FAILED},
    )
    actions = apply_plan(topology_of(spec(PS, "worker: {tasks: 3}", restart="{policy: never}")), observed)[1]
    assert kept_servers(actions, observed) == {
        "/job:ps/task:0": 0,
        "/job:worker/task:0": 0,
        "/job:worker/task:1": None,
    }


def test_the_revision_changes_with_the_topology_and_the_servers_but_not_with_runs() -> None:
    observed = up(spec(PS, WORKER))
    same = [decode(ObservedState, to_json(observed)), replace(observed, runs={"pi-3f9a": ["/job:ps/task:0"]})]
    assert {each.revision for each in same} == {observed.revision}
    other = [
        up(spec(PS, "worker: {tasks: 3}")),
        replace(observed, generations={}),
        replace(observed, topology=replace(observed.topology, generation=1)),
    ]
    assert observed.revision not in {each.revision for each in other}


def test_a_summary_counts_what_was_done() -> None:
    observed = up(spec(PS, WORKER))
    shrunk_and_changed = apply_plan(topology_of(spec(PS, "worker: {tasks: 1, cpus: 2}")), observed)[1]
    grown = apply_plan(replace(scale(observed.topology, {"worker": 3}), spec="other"), observed)[1]
    assert summary(shrunk_and_changed) == "1 task restarted, 1 stopped"
    assert summary(grown) == "1 task started, 3 restarted"
    assert summary(grown[-1:]) == summary(()) == ""


def test_an_operation_as_json_says_what_is_lost() -> None:
    restart, update = apply_plan(topology_of(spec("ps: {tasks: 1, cpus: 2, max: 2}")), up(spec(PS)))[1]
    assert restart.to_json() == {
        "operation": "restart",
        "task": "/job:ps/task:0",
        "host": "localhost",
        "address": "localhost:2222",
        "cause": "cpus 1 -> 2",
        "lost": ["the variables of ps:0"],
    }
    assert update.to_json() == {
        "operation": "update",
        "task": None,
        "host": None,
        "address": None,
        "cause": "max of ps none -> 2",
        "lost": [],
    }
