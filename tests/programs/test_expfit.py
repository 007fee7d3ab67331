"""Learning e^x: the same training written once more in NumPy, and the same curve however it is divided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import mostly_slow
from tfcluster.errors import ClusterError
from tfcluster.programs import expfit, sessions
from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.expfit import BatchShard, initial_layers, parameter_device, partition, stream_examples
from tfcluster.reporting import MetricReporter, set_reporter

DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(5))


def train(
    modes: list[str], devices: int = 1, **parameters: Any
) -> tuple[dict[str, Any], Context, list[dict[str, Any]]]:
    """A run on some number of CPU devices of this process, in place of a cluster's."""
    events: list[dict[str, Any]] = []
    context = Context(
        "expfit-1",
        {"localhost": ["localhost:1"]},
        DEVICES[:devices],
        lambda event, **fields: events.append({"event": event, **fields}),
    )
    values = {"steps": 120, "rate": 0.05, "batch": 13, "seed": 5, **parameters}

    def session(graph: tf.Graph, used: Iterable[str]) -> Any:
        assert set(used) <= set(context.devices)
        return tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"CPU": 5}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "open_session", session)
        patch.setattr(sessions, "check_listening", lambda device: None)
        set_current_run(context)

        def send(event: dict[str, Any], may_wait: bool) -> bool:
            events.append(event)
            return True

        set_reporter(reporter := MetricReporter(send))
        expfit.run(modes, **values)
        reporter.flush()
        return context.result, context, events


def numpy_losses(seed: int, steps: int, rate: float, batch: int) -> list[float]:
    """The loss of each step, its gradients derived by hand."""
    hidden, output = initial_layers(seed)
    losses = []
    for x in stream_examples(seed, batch)(steps):
        between = np.tanh(np.outer(x, hidden[0]) + hidden[1])
        error = between @ output[:-1, 0] + output[-1, 0] - np.exp(x)
        losses.append(float(np.mean(error**2)))
        slope = 2 * error / batch
        back = np.outer(slope, output[:-1, 0]) * (1 - between**2)
        output = output - rate * np.append(between.T @ slope, slope.sum())[:, np.newaxis]
        hidden = hidden - rate * np.stack([back.T @ x, back.sum(0)])
    return losses


def test_the_curve_equals_that_of_numpy() -> None:
    result, context, events = train(["single"], steps=150, batch=13, seed=5)
    assert [step for step, _ in result["curve"]] == list(range(1, 151))
    losses = [loss for _, loss in result["curve"]]
    assert losses == pytest.approx(numpy_losses(5, 150, 0.05, 13), rel=1e-9)
    assert (result["mode"], result["steps"], result["seed"], result["loss"]) == ("single", 150, 5, losses[-1])
    assert context.device_stats["/job:localhost/task:0/device:CPU:0"]["examples"] == 150 * 13
    assert context.device_stats["/job:localhost/task:0/device:CPU:0"]["ops"] > 20
    metrics = {each["name"]: each for each in events if each["event"] == "metric"}
    assert metrics["loss"].items() >= {"series": "single", "step": 150, "value": losses[-1]}.items()
    assert metrics["steps_per_s"]["value"] > 0
    progress = [each for each in events if each["event"] == "progress"]
    assert (progress[0]["done"], progress[-1]["done"], progress[-1]["total"]) == (10, 150, 150)


@pytest.mark.parametrize(
    "devices_and_batch", mostly_slow([(1, 13), (2, 13), (3, 13), (5, 13), (5, 3), (2, 1)], fast=[(5, 13), (5, 3)])
)
def test_data_parallel_training_has_the_same_curve(devices_and_batch: tuple[int, int]) -> None:
    devices, batch = devices_and_batch
    result, context, _ = train(["data-parallel"], devices, batch=batch)
    expected = numpy_losses(5, 120, 0.05, batch)
    assert [loss for _, loss in result["curve"]] == pytest.approx(expected, rel=1e-9)
    used = min(devices, batch)
    examples = [work["examples"] for work in context.device_stats.values() if work["examples"]]
    assert (len(examples), sum(examples)) == (used, 120 * batch)
    assert max(examples) - min(examples) <= 120, "the parts differ by one example at most"
    unused = [f"data-parallel: a batch of {batch} leaves nothing to {devices - used} of {devices} devices"]
    assert context.notes == (unused if used < devices else [])


@pytest.mark.parametrize("devices", [1, 3])
def test_model_parallel_training_has_the_same_curve(devices: int) -> None:
    result, context, _ = train(["model-parallel"], devices)
    assert [loss for _, loss in result["curve"]] == pytest.approx(numpy_losses(5, 120, 0.05, 13), rel=1e-9)
    assert [work["examples"] for work in context.device_stats.values()] == [120 * 13] * min(devices, 2)
    assert all(work["ops"] > 10 for work in context.device_stats.values())
    assert context.notes == ["model-parallel: there is only one task, so both layers are on it"]


def test_several_modes_are_trained_one_after_another() -> None:
    result, _, events = train(["single", "data-parallel", "model-parallel"], 3)
    assert result.keys() == {"modes", "seed"}
    assert [each["mode"] for each in result["modes"]] == ["single", "data-parallel", "model-parallel"]
    curves = [np.array(each["curve"]) for each in result["modes"]]
    assert curves[1] == pytest.approx(curves[0], rel=1e-9)
    assert curves[2] == pytest.approx(curves[0], rel=1e-9)
    assert [each["done"] for each in events if each["event"] == "progress"][-1] == 360


def test_training_reduces_the_loss() -> None:
    result, _, _ = train(["single"], steps=2000, batch=64, seed=2**63 - 1)
    # e^x itself has a mean square of 3.6 about 0 and of 0.43 about its mean there; a line through it leaves 0.02.
    assert result["loss"] < 0.01
    assert result["max_error"] < 0.5
    assert len(result["curve"]) <= 201
    assert result["curve"][0][0] == 1
    assert result["curve"][-1] == [2000, result["loss"]]


def test_a_learning_rate_that_is_too_high_is_an_error_even_in_the_last_step() -> None:
    with pytest.raises(ClusterError) as caught:
        train(["single"], rate=1e308, steps=1, seed=1)
    assert caught.value.message.startswith("the loss is not finite at step 1 (single): the learning rate 1e+308 ")
    with pytest.raises(ClusterError) as caught:
        train(["single"], rate=100.0)
    with np.errstate(all="ignore"):
        losses = numpy_losses(5, 120, 100.0, 13)
    step = next(at for at, loss in enumerate(losses, 1) if not np.isfinite(loss))
    assert caught.value.message == f"the loss is not finite at step {step} (single): the learning rate 100 is too high"
    assert caught.value.hint == "Try --lr 0.05."


def test_the_examples_do_not_depend_on_how_they_are_fetched() -> None:
    whole, parts = stream_examples(3, 7), stream_examples(3, 7)
    pieces = np.concatenate([parts(steps) for steps in (1, 4, 5)])
    assert np.array_equal(whole(10), pieces)
    assert not np.array_equal(stream_examples(4, 7)(10), pieces)
    assert pieces.min() >= -1
    assert pieces.max() <= 1


def names(*tasks: str) -> list[str]:
    return [f"/job:{job}/replica:0/task:{task}/device:CPU:0" for job, task in (each.split(":") for each in tasks)]


def test_layers_are_on_two_tasks_and_data_parallel_shares_are_even_with_weights_on_the_parameter_device() -> None:
    two_each = [f"/job:w/replica:0/task:{task}/device:CPU:{number}" for task in (0, 1) for number in (0, 1)]
    assert partition("model-parallel", two_each, None, 8).layers == (two_each[0], two_each[2])
    assert partition("model-parallel", two_each[:2], None, 8).layers == (two_each[0], two_each[1])
    assert partition("model-parallel", two_each[:1], None, 8).layers == (two_each[0], two_each[0])
    workers, (ps,) = names("worker:0", "worker:1", "worker:2"), names("ps:0")
    partitioning = partition("data-parallel", workers, ps, 8)
    assert partitioning.shares == (
        BatchShard(workers[0], 0, 2),
        BatchShard(workers[1], 2, 5),
        BatchShard(workers[2], 5, 8),
    )
    assert partitioning.layers == (ps, ps)
    assert partitioning.devices == (*workers, ps)
    assert partition("data-parallel", workers, None, 8).layers == (workers[0], workers[0])


@pytest.mark.parametrize(
    ("jobs", "keeper"),
    [
        (["worker", "master", "ps"], "ps"),
        (["worker_", "master", "worker"], "master"),
        (["worker", "chief"], "chief"),
        (["worker", "local"], None),
    ],
)
def test_the_parameter_device(jobs: list[str], keeper: str | None) -> None:
    assert parameter_device({job: ["h:1"] for job in jobs}) == (keeper and names(f"{keeper}:0")[0])
