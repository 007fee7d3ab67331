"""run linear: on any topology, through lost servers, on from where it stopped; in step to the least squares."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clusters import Cluster
from tests.conftest import Sandbox

LAYOUT = "name: full\njobs:\n  ps: {tasks: 2}\n  worker: {tasks: 3}\n  evaluator: {tasks: 1}\n"
# Of training, at the rate that it has without a loss: what is killed meanwhile dies long before it ends.
SECONDS_PAST_LOSSES = 10
RESULT = [
    *("w", "b", "loss", "steps", "steps_per_s", "examples_per_s", "workers", "optimizer", "lr", "batch", "sync"),
    *("seed", "resumed_from", "least_squares", "evaluations"),
]


#: What a run does in the end is waited for.
CLUSTER = Cluster(LAYOUT, warm=True, settings={"RUN_STOP_GRACE_SECONDS": 60.0, "DRIVER_TERMINATE_SECONDS": 50.0})


def is_least_squares(result: dict[str, Any]) -> bool:
    """Whether a training in step, or of one worker, has arrived; several at once can only be near (see `is_near`)."""
    return {name: result[name] for name in "wb"} == pytest.approx(result["least_squares"], abs=1e-6)


# A worker that is held up for long applies a gradient of long ago, also with the last of all steps: at this rate it
# moves the line by less than 0.1.
GENTLY = ("--seed", "4", "--optimizer", "sgd", "--lr", "0.03")


def is_near(result: dict[str, Any]) -> bool:
    """Whether asynchronous workers that train `GENTLY` came near: at first the loss is above 1.5, in the end 0.16."""
    return bool(result["loss"] < 0.3)


def made(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.linspace(-1, 1, 101)
    return x, 2 * x + 0.2 + 0.4 * np.random.default_rng(seed).standard_normal(101)


def test_workers_train_at_once_and_the_evaluator_scores(cluster: Sandbox) -> None:
    *earlier, final = cluster.json_lines("run", "linear", *GENTLY)
    assert final["state"] == "succeeded"
    result = final["result"]
    assert list(result) == RESULT
    assert (result["steps"], result["workers"], result["batch"], result["resumed_from"]) == (1000, 3, 101, None)
    w, b = np.polyfit(*made(4), 1)
    assert result["least_squares"] == pytest.approx({"w": w, "b": b})
    assert is_near(result)
    x, y = made(4)
    assert result["loss"] == pytest.approx(float(np.mean((result["w"] * x + result["b"] - y) ** 2)))
    assert result["steps_per_s"] > 0
    assert result["examples_per_s"] > 0

    metrics = [event for event in earlier if event["event"] == "metric"]
    reported = {(event.get("series"), event["name"]) for event in metrics}
    series = {"worker:0", "worker:1", "worker:2", "evaluator:0"}
    assert reported == {(None, "examples_per_s"), *itertools.product(series, ("loss", "w", "b"))}
    assert all(event.keys() >= {"step", "value", "seconds"} for event in metrics)
    assert all(event["done"] <= event["total"] == 1000 for event in earlier if event["event"] == "progress")
    assert result["evaluations"][-1] == [1000, pytest.approx(result["loss"])]

    work = final["devices"]
    assert {name.split("/")[1] for name in work} == {"job:ps", "job:worker", "job:evaluator"}
    workers = [done for name, done in work.items() if name.startswith("/job:worker/")]
    assert sum(done["steps"] for done in workers) == 1000
    assert sum(done["examples"] for done in workers) == 101_000
    assert all(done["ops"] > 0 for name, done in work.items() if "evaluator" not in name)
    assert work["/job:evaluator/task:0/device:CPU:0"]["scores"] == len(result["evaluations"])


@pytest.mark.slow
def test_workers_in_step_are_deterministic_and_as_good_as_one(cluster: Sandbox) -> None:
    options = ("--seed", "9", "--sync", "--optimizer", "sgd", "--lr", "0.3", "--steps", "100")
    whole = [cluster.json("run", "linear", *options)["result"] for _ in range(2)]
    assert (whole[0]["w"], whole[0]["b"]) == (whole[1]["w"], whole[1]["b"])
    assert is_least_squares(whole[0])
    batches = (*options, "--batch", "10")
    shared, alone = (
        cluster.json("run", "linear", *batches, "--devices", f"/job:worker/task:{tasks}")["result"] for tasks in "*1"
    )
    assert (shared["workers"], alone["workers"]) == (3, 1)
    assert (shared["w"], shared["b"]) == pytest.approx((alone["w"], alone["b"]), abs=1e-9)
    assert shared["w"] != whole[0]["w"]


@pytest.mark.slow
def test_a_csv_file_of_the_users(cluster: Sandbox) -> None:
    x = np.linspace(-2, 3, 300)
    path = cluster.folder / "mine.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("when", "y", "x"), *((0, 5 - 3 * value, value) for value in x)])
    result = cluster.json("run", "linear", "--data", "mine.csv", "--epochs", "400", "--batch", "1000", "--sync")[
        "result"
    ]
    assert result["least_squares"] == pytest.approx({"w": -3, "b": 5})
    assert (result["steps"], result["batch"]) == (400, 300)
    assert (result["w"], result["b"]) == pytest.approx((-3, 5), abs=1e-3)
    path.write_text("x,y\n1,2\n3\n")
    error = cluster("run", "linear", "--data", "mine.csv", code=2).stderr
    assert error.startswith("error: mine.csv:3: has 1 columns, the first line has 2\nhint: ")


def test_a_folder_that_cannot_be_written_is_reported(cluster: Sandbox) -> None:
    assert "--logdir /proc/new: cannot be written" in cluster("run", "linear", "--logdir", "/proc/new", code=2).stderr


@pytest.mark.slow
def test_the_next_run_goes_on_from_the_checkpoint(cluster: Sandbox, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ("run", "linear", "--sync", "--batch", "10", "--seed", "5", "--logdir", str(log))
    without_seed = (*options[:-4], *options[-2:])  # it is that of the checkpoint
    halves = [cluster.json(*words, "--steps", "20", "--checkpoint-every", "0.1") for words in (options, without_seed)]
    assert [half["result"]["steps"] for half in halves] == [20, 40]
    assert [half["result"]["resumed_from"] for half in halves] == [None, 20]
    assert halves[1]["notes"] == [f"resumed from the checkpoint of step 20 in {log}"]
    whole = cluster.json(*options[:-2], "--steps", "40")["result"]
    assert (halves[1]["result"]["w"], halves[1]["result"]["b"]) == pytest.approx((whole["w"], whole["b"]), abs=1e-12)
    assert len(list(log.glob("events.out.tfevents.*"))) == 2
    error = cluster(*options, "--optimizer", "adam", code=2).stderr
    assert "is a checkpoint with another optimizer" in error


@pytest.mark.slow
def test_the_result_for_people(cluster: Sandbox) -> None:
    options = ("--seed", "4", "--steps", "200", "--devices", "/job:worker/task:1")
    lines = cluster("run", "linear", *options).stdout.splitlines()
    assert lines[0] == "y = 2.006x + 0.1746, mean squared error 0.1623"
    assert lines[1] == "least squares in closed form: y = 2.006x + 0.1746"
    assert lines[2].startswith("scored ")
    assert lines[3].startswith("200 steps, ")
    assert lines[3].partition("adagrad")[2].startswith(" 0.8, 1 worker asynchronously, seed 4, ")
    error = cluster("run", "linear", "--optimizer", "sgd", "--lr", "1000", code=1).stderr
    assert "the training diverged: after step" in error


@pytest.mark.slow
def test_a_run_that_is_cancelled_leaves_a_checkpoint(cluster: Sandbox, tmp_path: Path) -> None:
    options = f"run linear --seed 4 --logdir {tmp_path} --devices /job:worker/task:0 -o json".split()
    run = cluster.start(*options, "--steps", "1e9")
    messages = (json.loads(line) for line in run.stdout)
    # The parameters are read every second at least: half of these seconds and steps are not lost.
    assert any(event["event"] == "metric" and event["step"] > 1000 and event["seconds"] > 3 for event in messages)
    run.send_signal(signal.SIGINT)
    *_, final = [json.loads(line) for line in run.stdout]
    assert final["state"] == "cancelled"
    run.communicate(timeout=60)
    result = cluster.json(*options, "--steps", "1")["result"]
    assert result["resumed_from"] > 500, "not that of the beginning, nor of seconds ago"
    assert result["steps"] == result["resumed_from"] + 1
    assert is_least_squares(result)


@pytest.mark.slow
def test_a_run_goes_on_without_a_worker_and_with_a_new_parameter_server(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: tough\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"))
    pids = sandbox.tasks("pid")
    steps = int(SECONDS_PAST_LOSSES * sandbox.json("run", "linear", *GENTLY)["result"]["steps_per_s"])
    run = sandbox.start("run", "linear", *GENTLY, "--steps", str(steps), "-o", "json")
    final: dict[str, Any] = {}
    later = 0
    for line in run.stdout:
        final = json.loads(line)
        later += final["event"] == "metric" and "ps:0" not in pids
        if final["event"] == "metric" and final.get("series") == "worker:1" and "worker:1" in pids:
            os.kill(pids.pop("worker:1"), signal.SIGKILL)
        if final["event"] == "metric" and final["step"] >= 1000 and "ps:0" in pids:
            os.kill(pids.pop("ps:0"), signal.SIGKILL)
    run.communicate(timeout=60)
    assert pids.keys() == {"worker:0"}
    assert later > 2, "the training goes on after both losses"
    assert final["state"] == "succeeded"
    assert is_near(final["result"])
    # A worker that dies in the moment in which it has counted a block has it done, and counted, once more.
    assert final["result"]["steps"] >= steps
    assert any(note.startswith("worker:1: lost ") for note in final["notes"])
    assert any(note.startswith("ps:0 lost the variables; the training resumed from step ") for note in final["notes"])
