"""The loop of training steps against the optimizers' published rules in NumPy, and the order of the examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfcluster.programs.api import Context
from tfcluster.programs.linear.batches import rows_of, split_batch
from tfcluster.programs.linear.config import TrainingConfig
from tfcluster.programs.linear.dataset import made
from tfcluster.programs.linear.model import ScoringGraph, StateGraph, TrainingGraph
from tfcluster.programs.linear.roles import Roles

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(3)]


def plan(optimizer: str = "adagrad", rate: float = 0.1, batch: int = 101, seed: int = 4) -> TrainingConfig:
    context = Context("linear-1", {"localhost": ["localhost:1"]}, tuple(DEVICES), lambda event, **fields: None)
    return TrainingConfig(context, Roles((DEVICES[0],), tuple(DEVICES), None), made(seed), optimizer, rate, batch, seed)


def trained(what: TrainingConfig, devices: int, first: int, *counts: int) -> list[dict[str, Any]]:
    """The results of calls for so many steps each, on CPU devices of this process."""
    training = TrainingGraph(what, DEVICES[:devices])
    found = []
    with tf.compat.v1.Session(
        graph=training.graph, config=tf.compat.v1.ConfigProto(device_count={"CPU": 3})
    ) as session:
        with training.graph.as_default():
            session.run(tf.compat.v1.global_variables_initializer())
        for count in counts:
            found.append(session.run(training.results, {training.first: first, training.count: count}))
            first += count
    return found


def by_hand(what: TrainingConfig, steps: int) -> tuple[float, float, float]:
    """w, b and the last step's loss, from the optimizers' rules."""
    weights = np.zeros(2)
    square, momentum, first, second = np.full(2, 0.1), np.zeros(2), np.zeros(2), np.zeros(2)
    loss = 0.0
    for step in range(steps):
        rows = np.arange(101)
        if what.batch < 101:
            rows = rows_of(what, tf.constant(step, tf.int64), 0, what.batch).numpy()
        x, y = what.points.x[rows], what.points.y[rows]
        error = weights[0] * x + weights[1] - y
        loss = float(np.mean(error**2))
        gradient = np.array([np.mean(2 * error * x), np.mean(2 * error)])
        if what.optimizer == "sgd":
            weights = weights - what.rate * gradient
        elif what.optimizer == "adagrad":
            square = square + gradient**2
            weights = weights - what.rate * gradient / np.sqrt(square)
        elif what.optimizer == "momentum":
            momentum = 0.9 * momentum + gradient
            weights = weights - what.rate * momentum
        else:
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            rate = what.rate * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            weights = weights - rate * first / (np.sqrt(second) + 1e-8)
    return float(weights[0]), float(weights[1]), loss


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd", "momentum", "adam"])
@pytest.mark.parametrize("batch", [101, 10])
def test_steps_are_those_of_the_optimizer_on_any_number_of_devices(optimizer: str, batch: int) -> None:
    what = plan(optimizer, batch=batch)
    w, b, loss = by_hand(what, 25)
    for devices in (1, 3):
        *_, last = trained(what, devices, 0, 1, 0, 24)
        assert last["step"] == 25
        # Adam's beta1 and beta2 are float32 within TensorFlow.
        assert (last["w"], last["b"], last["loss"]) == pytest.approx((w, b, loss), rel=1e-5)


def test_a_batch_smaller_than_the_number_of_devices() -> None:
    what = plan("sgd", batch=2)
    w, b, _ = by_hand(what, 5)
    (last,) = trained(what, 3, 0, 5)
    assert (last["w"], last["b"]) == pytest.approx((w, b), rel=1e-5)


def test_no_steps_change_nothing() -> None:
    (found,) = trained(plan(), 1, 0, 0)
    assert found == {"step": 0, "loss": 0.0, "w": 0.0, "b": 0.0}


def epochs(seed: int) -> list[tuple[int, ...]]:
    """The orders of the rows in the first ten epochs, as 101 batches of 10 have them."""
    what = plan(batch=10, seed=seed)
    rows = np.concatenate([rows_of(what, tf.constant(step, tf.int64), 0, 10).numpy() for step in range(101)])
    return [tuple(epoch) for epoch in rows.reshape(10, 101)]


def test_batches_go_through_all_rows_each_time_in_another_order() -> None:
    orders = [order for seed in (4, 5, 2**40 + 4) for order in epochs(seed)]
    assert all(sorted(order) == list(range(101)) for order in orders)
    assert len(set(orders)) == 30


def test_the_parts_of_a_batch_together_are_the_batch() -> None:
    what = plan(batch=50)
    step = tf.constant(7, tf.int64)
    parts = [rows_of(what, step, begin, end - begin).numpy() for begin, end in split_batch(50, 3)]
    assert [len(part) for part in parts] == [16, 17, 17]
    assert np.array_equal(np.concatenate(parts), rows_of(what, step, 0, 50).numpy())


def test_all_variables_are_read_and_set() -> None:
    state = StateGraph(plan("adam"))
    names = {"w", "b", "global_step", "beta1_power", "beta2_power", "w/Adam", "w/Adam_1", "b/Adam", "b/Adam_1"}
    assert state.values.keys() == state.lost.keys() == state.homes.keys() == names
    with tf.compat.v1.Session(graph=state.graph) as session:
        assert all(session.run(state.lost).values())
        state.set(session, {name: number for number, name in enumerate(sorted(names))})
        assert not any(session.run(state.lost).values())
        assert session.run(state.values) == {name: number for number, name in enumerate(sorted(names))}
        session.run(state.initialise)
        assert session.run(state.values)["w"] == 0


def test_the_variables_are_spread_over_the_servers_in_turn() -> None:
    what = plan()
    servers = tuple(f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(2))
    homes = StateGraph(
        TrainingConfig(what.context, Roles(servers, what.roles.replicas, None), made(4), "sgd", 0.1, 101, 4)
    ).homes
    assert homes == {
        "w": "/job:ps/task:0/device:CPU:0",
        "b": "/job:ps/task:1/device:CPU:0",
        "global_step": "/job:ps/task:0/device:CPU:0",
    }


def test_a_score_is_the_loss_on_all_points() -> None:
    scoring = ScoringGraph(plan(), DEVICES[0])
    with tf.compat.v1.Session(graph=scoring.graph) as session:
        with scoring.graph.as_default():
            session.run(tf.compat.v1.global_variables_initializer())
        found = session.run(scoring.results)
    assert found["loss"] == pytest.approx(made(4).loss(0, 0))
