"""Whole trainings on a server of this process: what is wrong for good ends them, what is lost they do without."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import tensorflow as tf

import tfcluster
from tests.conftest import mostly_slow
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs import linear, sessions, shards
from tfcluster.programs.context import Context, set_current_run
from tfcluster.programs.linear import LogFolder, Parameters, Values
from tfcluster.programs.sessions import open_session

OPTIONS: dict[str, Any] = {
    **{"data": "", "steps": 100, "epochs": None, "batch": 128, "optimizer": "sgd", "lr": 0.3, "sync": False},
    **{"logdir": None, "checkpoint_every": 30.0, "seed": 4},
}


def train(context: Context, **options: Any) -> dict[str, Any]:
    set_current_run(context)
    linear.run(**{**OPTIONS, **options})
    return cast(dict[str, Any], context.result)


@pytest.fixture
def context(
    local_run: Callable[[int], Context], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Context:
    """A run on two devices, with variables of its own, whose server is never too slow."""
    monkeypatch.setattr(linear, "_CALL_TIMEOUT_MS", 120_000)
    local = local_run(2)
    (addresses,) = local.addresses.values()
    return replace(local, run=f"linear-{abs(hash(request.node.name))}", head_address=addresses[0])


@pytest.fixture
def dead() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as holder:
        holder.bind(("localhost", 0))
        yield f"localhost:{holder.getsockname()[1]}"


def fail(patch: pytest.MonkeyPatch, most: int, error: type[tf.errors.OpError]) -> None:
    """Have the workers' calls of more than `most` steps fail."""

    call = linear.call

    def call_or_fail(session: Any, fetches: Any, feed: Any = None, *options: Any) -> Any:
        if isinstance(fetches, dict) and "loss" in fetches and list(feed.values())[1] > most:
            raise error(None, None, "From /job:worker/replica:0/task:0:\nno more of this")
        return call(session, fetches, feed, *options)

    patch.setattr(linear, "call", call_or_fail)


def test_the_metrics_and_progress_of_a_training_end_with_its_result(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics: dict[str, list[tuple[int, float]]] = {}
    progress: list[dict[str, Any]] = []
    monkeypatch.setattr(
        tfcluster, "metric", lambda name, value, step, series=None: metrics.setdefault(name, []).append((step, value))
    )
    result = train(replace(context, emit=lambda event, **fields: progress.append(fields)), sync=True)
    assert metrics.keys() == {"loss", "w", "b", "examples_per_s"}
    assert {name: metrics[name][-1] for name in ("w", "b", "examples_per_s")} == {
        name: (100, result[name]) for name in ("w", "b", "examples_per_s")
    }
    assert metrics["loss"][0][1] > metrics["loss"][-1][1]
    assert [fields["done"] for fields in progress][-1] == 100
    work = context.device_stats.values()
    assert [(stats["steps"], stats["examples"]) for stats in work] == [(100, 5000), (100, 5100)]
    assert all(stats["ops"] > 0 for stats in work)


def test_a_run_ends_at_once_if_the_task_of_its_variables_was_not_ready(context: Context, opened: list[Any]) -> None:
    for addresses, missing in (
        ({"ps": ["h:1", "h:2"], **context.addresses}, {"/job:ps/task:1": "ps:1 has failed"}),
        (context.addresses, {"/job:local/task:0": "ps:1 has failed"}),
    ):
        with pytest.raises(ClusterError, match="ps:1 has failed") as caught:
            train(replace(context, addresses=addresses, missing=missing))
        assert (caught.value.message, caught.value.exit_code) == ("ps:1 has failed", ExitCode.UNHEALTHY)
    assert opened == []


def test_a_slow_worker_trains_in_smaller_blocks(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, 10, tf.errors.DeadlineExceededError)
    monkeypatch.setattr(shards, "next_size", lambda size, count, seconds: size + 1)
    assert train(context, steps=36)["steps"] == 36


@pytest.mark.parametrize("sync", mostly_slow([False, True], fast=[True]))
def test_the_training_fails_if_no_worker_can_train(
    context: Context, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    fail(monkeypatch, 0, tf.errors.DeadlineExceededError)
    monkeypatch.setattr(linear, "_WORKERS_LOST_SECONDS", 0.2)
    with pytest.raises(ClusterError, match="DeadlineExceededError: no more of this") as caught:
        train(context, sync=sync)
    names = ["all workers"] if sync else ["local:0/CPU:0", "local:0/CPU:1"]
    assert [each.partition(": ")[0] for each in caught.value.message.split("; ")] == names


def test_other_errors_are_raised_at_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, 0, tf.errors.ResourceExhaustedError)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        train(context)
    assert context.notes == []


def test_a_run_that_resumes_has_the_same_data_unless_another_seed_is_given(context: Context, tmp_path: Path) -> None:
    options = {"optimizer": "adam", "lr": 0.1, "sync": True, "steps": 20, "logdir": str(tmp_path)}
    first = train(context, seed=None, **options)
    assert first["resumed_from"] is None
    again = replace(context, run=f"{context.run}-2")
    second = train(again, seed=None, **options)
    assert (second["resumed_from"], second["steps"]) == (20, 40)
    assert (second["seed"], second["least_squares"]) == (first["seed"], first["least_squares"])
    other = (first["seed"] + 1) % 2**32
    third = train(replace(context, run=f"{context.run}-3"), seed=other, **options)
    assert (third["seed"], third["resumed_from"]) == (other, 40)
    assert f"the checkpoint is of a training with --seed {first['seed']}, which had other data" in context.notes
    assert train(replace(context, run=f"{context.run}-4"), seed=None, **options)["seed"] == other
    assert train(replace(context, run=f"{context.run}-5"), seed=None, **{**options, "logdir": None})["seed"] != other


def test_a_seed_is_not_recorded_with_a_checkpoint_that_is_refused(context: Context, tmp_path: Path) -> None:
    options = {"sync": True, "steps": 20, "logdir": str(tmp_path)}
    train(context, optimizer="sgd", **options)
    with pytest.raises(ClusterError, match="is a checkpoint with another optimizer"):
        train(replace(context, run=f"{context.run}-2"), optimizer="adam", **{**options, "seed": 5})
    third = train(replace(context, run=f"{context.run}-3"), optimizer="sgd", **{**options, "seed": None})
    assert (third["seed"], third["resumed_from"]) == (4, 20)


@pytest.mark.parametrize("text", mostly_slow([None, "", "[]", "{}", '{"seed": "x"}'], fast=[""]))
def test_a_checkpoint_without_its_seed_is_used_nevertheless(context: Context, tmp_path: Path, text: str | None) -> None:
    options = {"sync": True, "steps": 20, "logdir": str(tmp_path)}
    train(context, **options)
    (tmp_path / "training.json").unlink()
    if text is not None:
        (tmp_path / "training.json").write_text(text)
    assert train(replace(context, run=f"{context.run}-2"), seed=None, **options)["resumed_from"] == 20


def test_the_graph_of_synchronous_training_has_a_size_limit(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_POINTS_MAX", 200)
    with pytest.raises(ClusterError) as caught:
        train(context, sync=True, batch=10)
    assert caught.value.message == "101 points for each of 2 devices in step are more than 200 in all"
    assert caught.value.exit_code is ExitCode.USAGE
    assert train(context, sync=True)["steps"] == 100


def test_variables_lost_after_the_last_step_are_trained_again(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Parameters.read
    lost = threading.Event()

    def lose_and_read(self: Parameters) -> Values:
        if self.snapshot and linear.call(self.session, self.values)["global_step"] == 200 and not lost.is_set():
            lost.set()
            tf.compat.v1.Session.reset(f"grpc://{context.head_address}", [context.run])
        return read(self)

    monkeypatch.setattr(Parameters, "read", lose_and_read)
    result = train(context, steps=200)
    assert lost.is_set()
    assert result["steps"] == 200
    assert {name: result[name] for name in "wb"} == pytest.approx(result["least_squares"], abs=0.01)
    assert any(note.startswith("local:0 lost the variables; ") for note in context.notes)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sessions of a training, whose end has all the time that it needs."""
    for bound in ("_CANCELLED_JOIN_SECONDS", "_CANCELLED_READ_SECONDS", "_CANCELLED_CLOSE_SECONDS"):
        monkeypatch.setattr(linear, bound, 60.0)
    kept: list[Any] = []

    def open_and_keep(*args: Any, **options: Any) -> Any:
        kept.append(open_session(*args, **options))
        return kept[-1]

    monkeypatch.setattr(sessions, "open_session", open_and_keep)
    return kept


class Cancelled(BaseException):
    """As the driver has it: raised in the main thread, past every `except Exception`."""


def test_a_cancelled_run_writes_a_checkpoint_and_closes_its_sessions(
    context: Context, opened: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def metric(name: str, value: float, step: int, series: str = "") -> None:
        steps.append(step)
        if step > 100:
            os.kill(os.getpid(), signal.SIGUSR1)

    def cancel(*args: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise Cancelled

    monkeypatch.setattr(tfcluster, "metric", metric)
    earlier = signal.signal(signal.SIGUSR1, cancel)
    try:
        with pytest.raises(Cancelled):
            train(context, steps=10**9, logdir=str(tmp_path))
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    checkpoint = LogFolder(str(tmp_path)).latest(["w", "b", "global_step"])
    assert checkpoint is not None
    assert checkpoint["global_step"] >= max(steps)
    assert opened
    assert all(session._closed for session in opened)


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({"lr": 1000.0, "steps": 400}, r"[\d,]+"),
        ({"lr": 1e300, "steps": 1}, "1"),
        pytest.param({"lr": 1e200, "steps": 1}, "1", marks=pytest.mark.slow),
    ],
)
def test_a_training_that_diverges_closes_its_sessions(
    context: Context, opened: list[Any], options: dict[str, Any], step: str
) -> None:
    with pytest.raises(ClusterError, match=f"the training diverged: after step {step} w is "):
        train(context, **options)
    assert opened
    assert all(session._closed for session in opened)


def test_points_whose_squares_overflow_are_rejected(context: Context, tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text("x,y\n1e200,1\n2e200,2\n")
    with pytest.raises(ClusterError, match=r"^large\.csv: the numbers are so large that "):
        train(replace(context, upload_path=path), data="large.csv")


@pytest.mark.parametrize("sync", mostly_slow([False, True], fast=[False]))
def test_training_continues_without_workers_that_do_not_recover(
    context: Context, monkeypatch: pytest.MonkeyPatch, dead: str, sync: bool
) -> None:
    monkeypatch.setattr(linear, "_RECOVERY_SECONDS", 0.2)
    lost_device = "/job:local/replica:0/task:1/device:CPU:0"
    partial = replace(
        context, addresses={"local": [context.head_address, dead]}, devices=(*context.devices, lost_device)
    )
    result = train(partial, sync=sync, steps=3000)
    assert (result["steps"], result["workers"]) == (3000, 3)
    assert {name: result[name] for name in "wb"} == pytest.approx(result["least_squares"], abs=0.01)
    assert any(note.startswith("local:1: lost (ConnectionError) and not back ") for note in partial.notes)
    assert "/job:local/task:1/device:CPU:0" not in partial.device_stats


def test_training_without_a_lost_evaluator_has_no_scores(context: Context, dead: str) -> None:
    partial = replace(context, addresses={"local": [context.head_address], "evaluator": [dead]})
    result = train(partial)
    assert (result["steps"], result["evaluations"]) == (100, [])
    assert partial.notes == ["evaluator:0 does not answer (ConnectionError): the last parameters have no score"]
