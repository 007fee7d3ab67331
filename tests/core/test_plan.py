"""The plan from a cluster that is up to another spec; tests/core/plans has what it says of each change.

Each file there has several specs. The first one is brought up, and each other one is planned for the cluster as the
one before has left it; behind each are, in comments, the plan, and the addresses that are kept for tasks that do not
run. `pytest --update` rewrites these comments. Keys that begin with `x-` say what happened before the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from tests.core.clusters import apply_plan, observed_on, observed_state, topology_of, up, with_ports
from tests.goldens import Update
from tfcluster.core.plan import data_losses, kept_servers, plan, summary
from tfcluster.core.reconcile import ObservedState, scale
from tfcluster.core.states import TaskState
from tfcluster.core.status import LastExit
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.protocol.serialization import decode, to_json

PLANS = sorted(Path(__file__).with_name("plans").glob("*.yaml"))


#: What can have happened.
HAPPENED = {"x-died", "x-states", "x-runs", "x-seen-by", "x-scale", "x-file"}


def state_before(told: dict[str, Any], observed: ObservedState) -> ObservedState:
    """Return a cluster after what has happened to it: tasks were restarted, are in other states, or run programs."""
    topology, died = observed.topology, told.get("x-died", ())
    assert {*died, *told.get("x-states", ())} <= {task.short for task in topology.tasks}
    generations = {
        task.name: topology.generation if task.short in died else observed.generations.get(task.name, 0)
        for task in topology.tasks
    }
    observed = observed_state(
        topology,
        generations,
        states={short: TaskState(state) for short, state in told.get("x-states", {}).items()},
        last_exit=LastExit("SIGKILL", 1.0, "why") if "x-states" in told else None,
        runs=told.get("x-runs", {}),
    )
    return observed_on(told["x-seen-by"], observed) if "x-seen-by" in told else observed


def kept_in(topology: ClusterTopology) -> Iterator[str]:
    """Yield a line for each address that is kept for a task that does not run."""
    known = topology.known_addresses()
    for task in topology.reserved:
        is_known = task.address in known.get(task.job, ())
        yield f"keep {task.short} at {task.address}{'' if is_known else ', which no server learns now'}"


def plans_of(specs: list[str]) -> Iterator[list[str]]:
    """Yield what each spec changes, one after another."""
    observed: ObservedState | None = None
    for text in specs:
        told = yaml.safe_load(text)
        assert {key for key in told if key.startswith("x-")} <= HAPPENED
        file = told.get("x-file", "cluster.yaml")
        if observed is None:
            desired = with_ports(topology_of(text, file))
            observed, operations = observed_state(desired), plan(desired, None)
        else:
            observed = state_before(told, observed)
            desired = scale(observed.topology, told["x-scale"]) if "x-scale" in told else topology_of(text, file)
            observed, operations = apply_plan(desired, observed)
            assert "x-states" in told or apply_plan(desired, observed)[1] == (), "there is nothing left to do"
        yield [*map(str, operations), *kept_in(observed.topology), summary(operations) or "nothing to do"]


def test_each_file_is_a_plan() -> None:
    assert {path.suffix for path in PLANS[0].parent.iterdir()} == {".yaml"}


@pytest.mark.parametrize("file", PLANS, ids=lambda file: file.stem)
def test_a_plan_restarts_only_what_changed(file: Path) -> None:
    specs = [text.partition("# -> ")[0] for text in file.read_text().split("---\n")]
    found = [
        text + "".join(f"# -> {line}\n" for line in lines) for text, lines in zip(specs, plans_of(specs), strict=True)
    ]
    if Update.is_on:
        file.write_text("---\n".join(found))
    assert file.read_text().split("---\n") == found


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


def test_kept_servers_are_those_that_no_action_touches_with_their_generation() -> None:
    states = {"worker:1": TaskState.BACKING_OFF, "worker:2": TaskState.FAILED}
    observed = observed_state(with_ports(topology_of("jobs: {ps: {tasks: 1}, worker: {tasks: 4}}")), states=states)
    desired = topology_of("jobs: {ps: {tasks: 1}, worker: {tasks: 3}}\nrestart: {policy: never}")
    assert kept_servers(apply_plan(desired, observed)[1], observed) == {
        "/job:ps/task:0": 0,
        "/job:worker/task:0": 0,
        "/job:worker/task:1": None,
    }


def test_the_revision_changes_with_the_topology_and_the_servers_but_not_with_runs() -> None:
    observed = up("jobs: {ps: {tasks: 1}, worker: {tasks: 2}}")
    with_runs = replace(observed, runs={"pi-3f9a": ("/job:ps/task:0",)})
    same = [decode(ObservedState, to_json(with_runs)), with_runs]
    assert same[0] == with_runs
    assert {each.revision for each in same} == {observed.revision}
    other = [
        up("jobs: {ps: {tasks: 1}, worker: {tasks: 3}}"),
        replace(observed, generations={}),
        replace(observed, topology=replace(observed.topology, generation=1)),
    ]
    assert observed.revision not in {each.revision for each in other}


def test_an_operation_as_json_says_what_is_lost_and_each_loss_is_listed_once() -> None:
    runs = {"pi-1": ["/job:ps/task:0", "/job:worker/task:0"]}
    observed = observed_state(with_ports(topology_of("jobs: {ps: {tasks: 1}, worker: {tasks: 1}}")), runs=runs)
    desired = topology_of("jobs: {ps: {tasks: 1, cpus: 2, max: 2}, worker: {tasks: 1, cpus: 2}}")
    operations = apply_plan(desired, observed)[1]
    of_task = {"operation": "restart", "host": "localhost", "cause": "cpus 1 -> 2"}
    assert [each.to_json() for each in operations] == [
        {
            **of_task,
            **{"task": "/job:ps/task:0", "address": "localhost:2222", "lost": ["the variables of ps:0", "run pi-1"]},
        },
        {**of_task, "task": "/job:worker/task:0", "address": "localhost:2223", "lost": ["run pi-1"]},
        {
            **{"operation": "update", "task": None, "host": None, "address": None, "lost": []},
            "cause": "max of ps none -> 2",
        },
    ]
    assert data_losses(operations) == ["the variables of ps:0", "run pi-1"]
