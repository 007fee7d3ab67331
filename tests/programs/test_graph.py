"""The graph of an expression: its values against Python's, and where its operations are put."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
import tensorflow as tf

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs import graph, sessions
from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.expression import parse
from tfcluster.programs.graph import choose_devices
from tfcluster.programs.sessions import session_config

CPUS = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(2))
ADDRESSES = {"ps": ["h:1"], "worker": ["h:2", "h:3"]}
WORKERS = tuple(f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(2))


@pytest.fixture(scope="module", autouse=True)
def sessions_here() -> Iterable[None]:
    """Sessions of two CPU devices of this process, in place of a cluster's."""

    def session(built: tf.Graph, used: Iterable[str], *, as_written: bool) -> Any:
        config = session_config(as_written=as_written)
        config.device_count["CPU"] = 2
        return tf.compat.v1.Session(graph=built, config=config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "open_session", session)
        patch.setattr(sessions, "check_listening", lambda device: None)
        yield


def compute(
    expression: str, placed: dict[str, str] | None = None, strict: bool = False
) -> tuple[Context, dict[str, Any]]:
    context = Context("graph-1", {"localhost": ["localhost:1"]}, CPUS, lambda event, **fields: None)
    set_current_run(context)
    return context, graph.compute(parse(expression), placed or {}, strict=strict)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2", 238),
        ("x = 5; (x - 8) * (x + 1)", -18),
        ("7 / 2", 3.5),
        ("-7", -7),
        ("2 ** 0.5", math.sqrt(2)),
        ("2 ** 53 + 0", 2**53),
        ("1e300 * 10", 1e301),
        ("a = 3; b = a; c = -b", -3),
        ("0 * -1", 0),
        ("Y = 1; y = 2; x = Y - y", -1),  # names are case-sensitive
    ],
)
def test_values(expression: str, value: float) -> None:
    _, result = compute(expression)
    assert result["value"] == value
    assert type(result["value"]) is type(value)
    assert result["operations"][result["name"]]["value"] == value


@pytest.mark.parametrize(
    ("expression", "column", "words"),
    [
        ("x = 5; y = x / (x - 5)", 14, "in y: 5 / 0 is a division by zero"),
        ("0 / 0 + 1", 3, "in result: 0 / 0 is a division by zero"),
        ("a = 0 ** -1; b = a + 1", 7, "in a: 0 ** (-1) is a division by zero"),
        ("(-8) ** 0.5", 6, "in result: (-8) ** 0.5 is not a real number"),
        ("10 ** 400", 4, "in result: 10 ** 400 is too large for a float64"),
        ("9 ** 9 ** 9", 3, "in result: 9 ** 387420489 is too large for a float64"),
    ],
)
def test_a_value_that_is_not_finite_is_shown_where_it_arises(expression: str, column: int, words: str) -> None:
    with pytest.raises(ClusterError) as caught:
        compute(expression)
    assert caught.value.exit_code == ExitCode.FAILED
    assert caught.value.message.startswith(f"expression:1:{column}: {words}\n  {expression}\n")


def test_operations_run_and_are_counted_on_their_devices() -> None:
    context, result = compute("x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2", {"y": CPUS[0]})
    assert {name: each["device"][-1] for name, each in result["operations"].items()} == {
        "x": "0",
        "y1": "1",
        "y2": "0",
        "y": "0",
    }
    assert set(context.device_stats) == {device.replace("/replica:0", "") for device in CPUS}
    assert all(work["ops"] >= 2 for work in context.device_stats.values())
    assert context.notes == []


def test_a_device_that_does_not_exist() -> None:
    asked = "/job:localhost/replica:0/task:0/device:GPU:3"
    context, result = compute("x = 2; y = -x", {"y": asked})
    assert result["value"] == -2
    requested, actual = asked.replace("/replica:0", ""), result["operations"]["y"]["device"]
    assert actual.startswith("/job:localhost/task:0/device:CPU:")
    assert context.notes == [f"y asked for {requested}, which the cluster does not have: placed on {actual}"]
    with pytest.raises(ClusterError) as caught:
        compute("x = 2; y = -x", {"y": asked}, strict=True)
    assert caught.value.message == f"y asks for {requested}, which the cluster does not have"
    assert caught.value.exit_code == ExitCode.FAILED
    assert "/job:localhost/task:0/device:CPU:1" in caught.value.hint


def test_a_task_that_was_not_ready_is_an_error() -> None:
    context = Context("graph-1", {"localhost": ["localhost:1"]}, CPUS, lambda event, **fields: None)
    context.missing = {"/job:localhost/task:0": "localhost:0 has failed"}
    set_current_run(context)
    with pytest.raises(ClusterError, match=r"^localhost:0 has failed\n") as caught:
        graph.compute(parse("1"), {}, strict=False)
    assert caught.value.exit_code == ExitCode.UNHEALTHY


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        ("/job:ps", "/job:ps/replica:0/task:0"),
        ("/job:worker/task:0", "/job:worker/replica:0/task:0"),
        ("/task:0", "/job:worker/replica:0/task:0"),
        ("/gpu:2", "/job:worker/replica:0/task:1/device:GPU:2"),
        ("/job:ps/device:cpu:0", "/job:ps/replica:0/task:0/device:CPU:0"),
        ("/job:worker/replica:0/task:1/device:GPU:0", "/job:worker/replica:0/task:1/device:GPU:0"),
        (None, WORKERS[1]),
    ],
)
def test_omitted_parts_of_a_device_string(asked: str | None, device: str) -> None:
    placed = {} if asked is None else {"y": asked}
    assert choose_devices(parse("x = 1; y = x; z = y"), placed, WORKERS, ADDRESSES) == {
        "x": WORKERS[0],
        "y": device,
        "z": WORKERS[0],
    }


@pytest.mark.parametrize(
    ("name", "asked", "message", "hint"),
    [
        ("y", "/job:worker/task:2", "the cluster has no such task", "/job:ps/task:0, /job:worker/task:0, /job:worker/"),
        ("y", "/job:workers", "the cluster has no such task", "/job:ps/task:0"),
        ("y", "/task:5", "the cluster has no such task", "/job:ps/task:0"),
        ("y", "worker:1", "this is not the TensorFlow device string of one device", "/job:worker/task:1/device:CPU:0"),
        ("y", "/job:worker/task:*", "this is not the TensorFlow device string of one device", "/job:worker/task:1"),
        ("w", "/job:ps", "the expression has no w", "Its names are x, y."),
    ],
)
def test_invalid_device_strings(name: str, asked: str, message: str, hint: str) -> None:
    with pytest.raises(ClusterError) as caught:
        choose_devices(parse("x = 1; y = x"), {name: asked}, WORKERS, ADDRESSES)
    assert caught.value.message == f"--device {name}={asked}: {message}"
    assert hint in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE
