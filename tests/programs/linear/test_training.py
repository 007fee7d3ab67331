"""A training with played workers and servers: its roles, the order of its steps, and servers that are lost."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

from tfcluster.errors import ClusterError
from tfcluster.programs import linear, sessions
from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.linear import (
    Block,
    Config,
    LogFolder,
    Parameters,
    RolledBackError,
    Training,
    assign_roles,
    cpu_of,
    make_points,
    name_workers,
    short_name,
)

DEVICES = [f"/job:worker/replica:0/task:{index}/device:CPU:0" for index in range(2)]


class PlayedSession:
    """A session that is never opened."""

    def close(self) -> None:
        pass


class PlayedParameters:
    """Variables that are never lost."""

    session = PlayedSession()
    initialized = threading.Event()
    snapshot: ClassVar = {"w": 0.0, "b": 0.0, "global_step": np.int64(0)}

    def read(self) -> dict[str, Any]:
        return self.snapshot


class PlayedWorker:
    """Records its blocks, and finds at some steps that variables have been restored."""

    _first_steps = threading.Lock()

    def __init__(self, name: str, device: str, rolls_back: dict[int, int]) -> None:
        self.name = name
        self.devices = [device]
        self.lost = None
        self.session = PlayedSession()
        self.blocks: list[range] = []
        self._rolls_back = rolls_back  # the step of the snapshot, by the step at which the variables are lost

    def prepare(self) -> dict[str, int]:
        return {}

    def train(self, first: int, count: int) -> Block:
        if first + count <= 10:
            assert self._first_steps.acquire(blocking=False), "another worker does some of the first steps now"
            time.sleep(0.001)  # the other worker gets to run
            self._first_steps.release()
        self.blocks.append(range(first, first + count))
        for step in [step for step in self._rolls_back if first <= step < first + count]:
            raise RolledBackError(self._rolls_back.pop(step))
        results = {"step": first + count, "loss": 1.0, "w": 0.0, "b": 0.0}
        return Block(self.name, count, results, self.devices)


def play(steps: int, workers: int = 1, first: int = 0, **rolls_back: int) -> list[PlayedWorker]:
    """Train with played workers; the variables are lost at steps, and restored to those of others."""
    addresses = {"worker": ["h:1", "h:2"]}
    set_current_run(Context("linear-1", addresses, tuple(DEVICES), lambda event, **fields: None))
    config = Config((DEVICES[0],), tuple(DEVICES), None, make_points(4), 101, 4, "sgd", 0.1)
    steps_lost = {int(step.removeprefix("at_")): to for step, to in rolls_back.items()}
    played = [PlayedWorker(f"worker:{index}", DEVICES[index], steps_lost) for index in range(workers)]
    by_name = {worker.name: worker for worker in played}
    training = Training(config, PlayedParameters(), by_name, [], LogFolder(None))  # type: ignore[arg-type]
    training.run(first, steps)
    return played


def test_the_first_steps_are_done_one_after_another() -> None:
    for _ in range(20):
        played = play(1000, workers=2)
        assert sorted(step for each in played for block in each.blocks for step in block) == list(range(1000))


def test_after_a_rollback_the_steps_since_the_snapshot_are_repeated_but_none_before_the_start() -> None:
    (worker,) = play(500, first=100, at_300=150)
    order = [step for block in worker.blocks for step in block]
    assert order[:201] == list(range(100, 301))
    assert order[-450:] == list(range(150, 600))
    assert order.count(149) == 1
    (worker,) = play(500, first=100, at_300=50)
    steps = [step for block in worker.blocks for step in block]
    assert set(steps) == set(range(100, 600))
    assert steps.count(100) == 2
    (worker,) = play(500, at_499=480)
    assert [step for block in worker.blocks for step in block][-20:] == list(range(480, 500))


SERVER = "/job:ps/replica:0/task:0/device:CPU:0"


def parameters_at(address: str) -> tuple[Parameters, Context]:
    """The variables on a server, in a run."""
    context = Context("linear-1", {"ps": [address]}, (SERVER,), lambda event, **fields: None)
    set_current_run(context)
    return Parameters(Config((SERVER,), (SERVER,), None, make_points(4), 101, 4, "sgd", 0.1)), context


@pytest.mark.parametrize("silent", [False, True])
def test_an_error_names_a_server_that_does_not_recover(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    monkeypatch.setattr(linear, "_RECOVERY_SECONDS", 0.3)
    monkeypatch.setattr(linear, "_CALL_TIMEOUT_MS", 1000)
    with socket.socket() as holder:
        holder.bind(("localhost", 0))
        if silent:  # accepts connections, as a server that is stopped does, and says nothing
            holder.listen()
        address = f"localhost:{holder.getsockname()[1]}"
        with pytest.raises(ClusterError) as caught:
            parameters_at(address)[0].read()
    assert caught.value.message == "ps:0 with the variables did not recover within 0 s"
    assert "--logdir" in caught.value.hint


class ServerThatIsLost:
    """A session on a server that dies as often as it is told to when its variables are read, and comes back empty."""

    def __init__(self, parameters: Parameters) -> None:
        self.deaths = 0
        self._parameters = parameters
        self._has_values = False

    def run(self, fetches: Any, feed: object = None) -> Any:
        if fetches is self._parameters.uninitialized:
            return dict.fromkeys(self._parameters.uninitialized, not self._has_values)
        if fetches is not self._parameters.values:
            self._has_values = True
            return None
        if self.deaths:
            self.deaths -= 1
            self._has_values = False
            raise tf.errors.UnavailableError(None, None, "gone")
        if not self._has_values:
            raise tf.errors.FailedPreconditionError(None, None, "no such variable")
        return dict.fromkeys(self._parameters.values, 3)


def test_a_server_that_is_lost_between_two_calls_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, context = parameters_at("localhost:1")
    session = ServerThatIsLost(parameters)
    monkeypatch.setattr(sessions, "check_listening", lambda *args: None)
    monkeypatch.setattr(sessions, "open_session", lambda *args, **options: session)
    parameters.read()
    session.deaths = 2
    for _ in range(2):
        with pytest.raises(RolledBackError) as caught:
            parameters.read()
        assert caught.value.step == 3
    assert parameters.read() == {"w": 3, "b": 3, "global_step": 3}
    assert [note.partition(",")[0] for note in context.notes] == [
        "ps:0 lost the variables; the training resumed from step 3"
    ] * 2


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
