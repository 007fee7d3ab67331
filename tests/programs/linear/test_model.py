"""The training steps against the optimizers' published rules in NumPy, and the data that is made from a seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.linear import Config, Evaluator, Parameters, Points, make_points, training_loop

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(3)]


@pytest.fixture(autouse=True)
def in_a_run() -> None:
    set_current_run(Context("linear-1", {"localhost": ["localhost:1"]}, tuple(DEVICES), lambda event, **fields: None))


def config_of(optimizer: str = "adagrad", rate: float = 0.1, batch: int = 101, seed: int = 4) -> Config:
    return Config((DEVICES[0],), tuple(DEVICES), None, make_points(seed), batch, seed, optimizer, rate)


def trained(config: Config, devices: int, begin: int, *counts: int) -> list[dict[str, Any]]:
    """The results of calls, each for its number of steps, on CPU devices of this process."""
    first, count, loop = training_loop(config, DEVICES[:devices])
    results = []
    with tf.compat.v1.Session(graph=first.graph, config=tf.compat.v1.ConfigProto(device_count={"CPU": 3})) as session:
        with first.graph.as_default():
            session.run(tf.compat.v1.global_variables_initializer())
        for size in counts:
            results.append(session.run(loop, {first: begin, count: size}))
            begin += size
    return results


def by_hand(config: Config, steps: int) -> tuple[float, float, float]:
    """w, b and the last step's loss, from the optimizers' rules."""
    weights = np.zeros(2)
    square, momentum, first, second = np.full(2, 0.1), np.zeros(2), np.zeros(2), np.zeros(2)
    loss = 0.0
    for step in range(steps):
        rows = np.arange(101)
        if config.batch < 101:
            rows = config.rows(tf.constant(step, tf.int64), 0, config.batch).numpy()
        x, y = config.points.x[rows], config.points.y[rows]
        error = weights[0] * x + weights[1] - y
        loss = float(np.mean(error**2))
        gradient = np.array([np.mean(2 * error * x), np.mean(2 * error)])
        if config.optimizer == "sgd":
            weights = weights - config.rate * gradient
        elif config.optimizer == "adagrad":
            square = square + gradient**2
            weights = weights - config.rate * gradient / np.sqrt(square)
        elif config.optimizer == "momentum":
            momentum = 0.9 * momentum + gradient
            weights = weights - config.rate * momentum
        else:
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            rate = config.rate * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            weights = weights - rate * first / (np.sqrt(second) + 1e-8)
    return float(weights[0]), float(weights[1]), loss


@pytest.mark.parametrize(("optimizer", "batch"), [("adagrad", 10), ("sgd", 101), ("momentum", 10), ("adam", 101)])
def test_steps_are_those_of_the_optimizer_on_any_number_of_devices(optimizer: str, batch: int) -> None:
    config = config_of(optimizer, batch=batch)
    w, b, loss = by_hand(config, 25)
    for devices in (1, 3):
        *_, last = trained(config, devices, 0, 1, 0, 24)
        assert last["step"] == 25
        # Adam's beta1 and beta2 are float32 within TensorFlow.
        assert (last["w"], last["b"], last["loss"]) == pytest.approx((w, b, loss), rel=1e-5)


def test_a_batch_smaller_than_the_number_of_devices_and_zero_steps() -> None:
    config = config_of("sgd", batch=2)
    w, b, _ = by_hand(config, 5)
    (last,) = trained(config, 3, 0, 5)
    assert (last["w"], last["b"]) == pytest.approx((w, b), rel=1e-5)
    (results,) = trained(config_of(), 1, 0, 0)
    assert results == {"step": 0, "loss": 0.0, "w": 0.0, "b": 0.0}


def epochs(seed: int) -> list[tuple[int, ...]]:
    """The orders of the rows in the first ten epochs, as 101 batches of 10 have them."""
    config = config_of(batch=10, seed=seed)
    rows = np.concatenate([config.rows(tf.constant(step, tf.int64), 0, 10).numpy() for step in range(101)])
    return [tuple(epoch) for epoch in rows.reshape(10, 101)]


def test_each_epoch_has_all_rows_in_another_order_and_the_shares_of_a_batch_make_the_batch() -> None:
    orders = [order for seed in (4, 5, 2**40 + 4) for order in epochs(seed)]
    assert all(sorted(order) == list(range(101)) for order in orders)
    assert len(set(orders)) == 30
    config = config_of(batch=50)
    step = tf.constant(7, tf.int64)
    parts = [config.rows(step, begin, end).numpy() for begin, end in config.split(3)]
    assert [len(part) for part in parts] == [16, 17, 17]
    assert np.array_equal(np.concatenate(parts), config.rows(step, 0, 50).numpy())


def test_all_variables_are_read_and_set() -> None:
    state = Parameters(config_of("adam"))
    names = {"w", "b", "global_step", "beta1_power", "beta2_power", "w/Adam", "w/Adam_1", "b/Adam", "b/Adam_1"}
    assert state.values.keys() == state.uninitialized.keys() == state.devices.keys() == names
    with tf.compat.v1.Session(graph=state.assign.graph) as session:
        assert all(session.run(state.uninitialized).values())
        values = {name: number for number, name in enumerate(sorted(names))}
        session.run(state.assign, {state.inputs[name]: value for name, value in values.items()})
        assert not any(session.run(state.uninitialized).values())
        assert session.run(state.values) == values
        session.run(state.initialize)
        assert session.run(state.values)["w"] == 0


def test_variables_are_placed_on_the_servers_round_robin() -> None:
    servers = tuple(f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(2))
    devices = Parameters(replace(config_of("sgd"), servers=servers)).devices
    assert devices == {
        "w": "/job:ps/task:0/device:CPU:0",
        "b": "/job:ps/task:1/device:CPU:0",
        "global_step": "/job:ps/task:0/device:CPU:0",
    }


def test_the_evaluator_computes_the_loss_on_all_points() -> None:
    config = config_of()
    results = Evaluator(config, DEVICES[0], Parameters(config)).results
    graph = results["loss"].graph
    with tf.compat.v1.Session(graph=graph) as session:
        with graph.as_default():
            session.run(tf.compat.v1.global_variables_initializer())
        loss = session.run(results)["loss"]
    assert loss == pytest.approx(make_points(4).loss(0, 0))


def test_synthetic_points_are_around_the_line_and_those_with_equal_x_have_no_closed_form() -> None:
    points = make_points(7)
    assert np.array_equal(points.x, np.linspace(-1, 1, 101))
    assert np.array_equal(points.y, make_points(7).y)
    assert not np.array_equal(points.y, make_points(8).y)
    noise = np.concatenate([make_points(seed).y for seed in range(200)]) - np.tile(2 * points.x + 0.2, 200)
    # 20,200 values: five standard errors of the mean and of the deviation.
    assert abs(noise.mean()) < 5 * 0.4 / 20_200**0.5
    assert abs(noise.std() - 0.4) < 5 * 0.4 / 40_400**0.5
    assert Points(np.array([1.0, 1.0]), np.array([1.0, 2.0])).least_squares() is None


@pytest.mark.parametrize("seed", range(5))
def test_the_closed_form_equals_that_of_numpy(seed: int) -> None:
    points = make_points(seed)
    w, b = np.polyfit(points.x, points.y, 1)
    assert points.least_squares() == pytest.approx({"w": w, "b": b})
    assert points.loss(w, b) == pytest.approx(float(np.var(points.y - w * points.x - b)))
    shifted = Points(points.x + 1e6, points.y)
    assert shifted.least_squares() == pytest.approx({"w": w, "b": b - w * 1e6}, rel=1e-6)
