"""The roles in a training: who holds the variables, who trains, who scores."""

from __future__ import annotations

import pytest

from tfcluster.programs.linear import assign_roles, cpu_of, name_workers, short_name


def cluster(**jobs: int) -> dict[str, list[str]]:
    return {job: [f"{job}-{index}:1" for index in range(tasks)] for job, tasks in jobs.items()}


def cpus(*tasks: str) -> tuple[str, ...]:
    return tuple(cpu_of(job, int(index)) for job, index in (task.split(":") for task in tasks))


@pytest.mark.parametrize(
    ("jobs", "head", "computing", "expected"),
    [
        (
            {"ps": 2, "worker": 2, "evaluator": 1},
            "worker:0",
            ("worker:0", "worker:1", "evaluator:0"),
            (("ps:0", "ps:1"), ("worker:0", "worker:1"), "evaluator:0"),
        ),
        ({"ps": 1, "worker": 2}, "worker:0", ("worker:1",), (("ps:0",), ("worker:1",), None)),
        (
            {"worker": 1, "master": 1, "worker_": 1},
            "master:0",
            ("worker:0", "master:0", "worker_:0"),
            (("master:0",), ("worker:0", "master:0", "worker_:0"), None),
        ),
        ({"local": 2}, "local:0", ("local:0", "local:1"), (("local:0",), ("local:0", "local:1"), None)),
        ({"local": 2}, "local:0", ("local:1",), (("local:0",), ("local:1",), None)),
        ({"ps": 2}, "ps:0", ("ps:0", "ps:1"), (("ps:0", "ps:1"), ("ps:0", "ps:1"), None)),
        ({"ps": 1, "scorer": 2, "chief": 1}, "chief:0", ("scorer:0", "chief:0"), (("ps:0",), ("chief:0",), "scorer:0")),
        ({"evaluator": 1}, "evaluator:0", ("evaluator:0",), (("evaluator:0",), ("evaluator:0",), None)),
    ],
)
def test_roles(
    jobs: dict[str, int],
    head: str,
    computing: tuple[str, ...],
    expected: tuple[tuple[str, ...], tuple[str, ...], str | None],
) -> None:
    roles = assign_roles(cluster(**jobs), f"{head.replace(':', '-')}:1", cpus(*computing))
    servers, replicas, evaluator = expected
    assert roles == (cpus(*servers), cpus(*replicas), cpus(evaluator)[0] if evaluator else None)


def test_the_names_of_workers_have_the_device_only_if_a_task_has_several() -> None:
    second = "/job:worker/replica:0/task:0/device:GPU:1"
    devices = (*cpus("worker:0", "worker:1"), second)
    names = ["worker:0/CPU:0", "worker:1", "worker:0/GPU:1"]
    assert name_workers(devices, sync=False) == {name: [device] for name, device in zip(names, devices, strict=True)}
    assert name_workers(devices, sync=True) == {"all workers": list(devices)}
    assert short_name("/job:ps/task:3/device:CPU:0") == "ps:3"
