"""Whole trainings on a server of this process: what is wrong for good ends them, what is lost they do without."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfcluster.programs.linear as linear
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.programs.context import Context
from tfcluster.programs.linear import replica
from tfcluster.programs.session import open_session

OPTIONS: dict[str, Any] = {
    "data": "",
    "steps": 100,
    "epochs": None,
    "batch": 128,
    "optimizer": "sgd",
    "lr": 0.3,
    "sync": False,
    "logdir": None,
    "checkpoint_every": 30.0,
    "seed": 4,
}


def train(context: Context, **options: Any) -> dict[str, Any]:
    return linear.run(context, **{**OPTIONS, **options})


@pytest.fixture
def context(local_run: Callable[[int], Context], request: pytest.FixtureRequest) -> Context:
    """A run on two devices, with variables of its own."""
    found = local_run(2)
    (addresses,) = found.addresses.values()
    return replace(found, run=f"linear-{abs(hash(request.node.name))}", head=addresses[0])


@pytest.fixture
def dead() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as holder:
        holder.bind(("localhost", 0))
        yield f"localhost:{holder.getsockname()[1]}"


class FailingSession:
    """A session whose calls of more than `most` steps fail."""

    def __init__(self, session: Any, most: int, error: type[tf.errors.OpError]) -> None:
        self._session = session
        self._most = most
        self._error = error

    def run(self, fetches: Any, feed: dict[Any, int], *rest: Any) -> Any:
        if list(feed.values())[1] > self._most:
            raise self._error(None, None, "From /job:worker/replica:0/task:0:\nno more of this")
        return self._session.run(fetches, feed, *rest)

    def close(self) -> None:
        self._session.close()


def fail(patch: pytest.MonkeyPatch, most: int, error: type[tf.errors.OpError]) -> None:
    """Have the workers' calls of more than `most` steps fail."""

    def open_failing(*args: Any, **options: Any) -> FailingSession:
        return FailingSession(open_session(*args, **options), most, error)

    patch.setattr(replica, "open_session", open_failing)


def test_a_worker_that_is_but_slow_trains_in_smaller_blocks(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, 1, tf.errors.DeadlineExceededError)
    monkeypatch.setattr(replica, "next_size", lambda count, seconds: count)
    assert train(context, steps=6)["steps"] == 6


@pytest.mark.parametrize("sync", [False, True])
def test_what_fails_time_and_again_ends_the_training(
    context: Context, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    fail(monkeypatch, 0, tf.errors.DeadlineExceededError)
    with pytest.raises(ClusterError, match="failed 5 times in a row: DeadlineExceededError: no more of this") as caught:
        train(context, sync=sync)
    assert caught.value.message.startswith("no worker was left after 0 of 100 steps: ")


def test_a_worker_that_answers_and_cannot_begin_is_given_up(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, -1, tf.errors.DeadlineExceededError)
    monkeypatch.setattr(replica, "PATIENCE_SECONDS", 0.2)
    with pytest.raises(ClusterError, match="answers, but cannot train: DeadlineExceededError: no more of this"):
        train(context)


def test_what_is_no_loss_is_raised_at_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, 0, tf.errors.ResourceExhaustedError)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        train(context)
    assert context.notes == []


def test_a_run_goes_on_from_the_checkpoint_of_another(context: Context, tmp_path: Path) -> None:
    options = {"optimizer": "adam", "lr": 0.1, "sync": True, "steps": 20, "logdir": str(tmp_path)}
    assert train(context, **options)["resumed_from"] is None
    again = train(replace(context, run=f"{context.run}-2"), **options)
    assert (again["resumed_from"], again["steps"]) == (20, 40)


def test_workers_in_step_share_the_room_of_one_graph(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MOST_ROWS", 200)
    with pytest.raises(ClusterError) as caught:
        train(context, sync=True, batch=10)
    assert caught.value.message == "101 points for each of 2 devices in step are more than 200 in all"
    assert caught.value.exit_code is ExitCode.USAGE
    assert train(context, sync=True)["steps"] == 100
