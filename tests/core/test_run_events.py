"""The typed events of a run are the records that its file and `run -o json` have; the names of runs and scripts."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.core.programs import BUNDLED
from tfcluster.core.run_events import (
    LatestMetrics,
    MemberEvent,
    MetricEvent,
    OutputEvent,
    ResultEvent,
    parse_event,
    to_record,
)
from tfcluster.core.runs import RunOptions, check_name, exit_code, matching_runs


def test_only_fields_that_may_be_missing_are_left_out_and_events_of_other_programs_are_of_no_kind() -> None:
    assert to_record(MetricEvent("loss", None, 1, 0.5)) == {
        "event": "metric",
        "name": "loss",
        "value": None,
        "step": 1,
        "seconds": 0.5,
    }
    assert list(to_record(OutputEvent("stdout", "x", task="worker:0"))) == ["event", "stream", "task", "data"]
    assert "exit_code" in to_record(MemberEvent("worker:0", "a", "exited", 0, exit_code=0))
    assert to_record(ResultEvent("pi-1", "pi", "cancelled", 1.0, None, {}, []))["result"] is None
    assert parse_event({"event": "dice", "value": 6}) is None
    assert parse_event({"event": "metric", "worker": "worker:0", "step": 1, "loss": 0.5, "seconds": 1.0}) is None
    assert parse_event({"event": "task_down", "task": "/job:ps/task:0", "problem": "died", "since": 1}) is not None


def test_the_latest_values_are_in_the_result_those_of_a_group_in_the_order_of_its_members() -> None:
    metrics = LatestMetrics()
    assert metrics.as_result() == {}
    for event in (
        {"event": "metric", "name": "loss", "value": 0.5},
        {"event": "metric", "name": "accuracy", "value": None},
        {"event": "output"},
        {"event": "metric", "worker": "worker:0", "loss": 4.0, "step": 1},  # of an earlier version
        {"event": "metric", "name": "loss", "value": "high"},
        {"event": "metric", "name": "loss", "value": 0.25},
    ):
        metrics.add(event)
    assert metrics.as_result() == {"metrics": {"loss": 0.25, "accuracy": None}}
    metrics = LatestMetrics(["worker:0", "worker:1", "worker:2"])
    assert metrics.as_result() == {}
    for task in ("worker:2", "worker:0"):
        metrics.add({"event": "metric", "task": task, "name": "loss", "value": 0.5})
    assert list(metrics.as_result()["metrics"].items()) == [("worker:0", {"loss": 0.5}), ("worker:2", {"loss": 0.5})]
    metrics = LatestMetrics()
    for series in ("b", "a", None, "a"):
        metrics.add({"event": "metric", "name": "a", "value": 1.5, **({"series": series} if series else {})})
    metrics.add({"event": "metric", "name": "loss", "value": 2.5})
    assert metrics.as_result() == {"metrics": {"a": {"a": 1.5}, "loss": 2.5, "b": {"a": 1.5}}}


def options(**parameters: Any) -> RunOptions:
    return RunOptions("script", {"path": None, "argument": "", "module": None, **parameters})


@pytest.mark.parametrize(
    ("path", "script", "name"),
    [
        ("/a/train.py", "train.py", "train"),
        ("/a/Train_Model.v2.py", "Train_Model.v2.py", "train-model-v2"),
        ("/a/train", "train", "train"),
        ("/a/pi.py", "pi.py", "pi-py"),
        ("/a/Pi.py", "Pi.py", "pi-py"),
        ("/a/script.py", "script.py", "script-py"),
        ("/a/launch.py", "launch.py", "launch-py"),
        ("/a/日本.py", "日本.py", "script"),
        ("/a/__.py", "__.py", "script"),
        ("/a/.py", ".py", "script"),
        ("/a/-x -y.py", "-x -y.py", "x-y"),
        ("/a/2024.py", "2024.py", "2024"),
        ("/a/package", "package", "package"),
        ("/a/" + "very-" * 10 + ".py", "very-" * 10 + ".py", "very-very-very-very-ver"),
        ("/a/<stdin>", "stdin", "stdin"),
        ("/dev/stdin", "stdin", "stdin"),
        ("/dev/fd/63", "stdin", "stdin"),
    ],
)
def test_scripts(path: str, script: str, name: str) -> None:
    run = options(path=path, argument="<stdin>" if "<" in path else path)
    assert (run.script, run.run_name) == (script, name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("train", "train"),
        ("package.train", "train"),
        ("package.__main__", "package"),
        ("package.pi", "pi-module"),
        ("package.py", "py"),
        ("__main__", "script"),
    ],
)
def test_modules(module: str, name: str) -> None:
    run = options(module=module, argument=module)
    assert (run.script, run.run_name) == (module, name)


def test_ids_have_few_characters_and_are_no_names_of_programs() -> None:
    for stem in (*BUNDLED, "launch", "x" * 300, "a" * 22 + "--b", "\n", "ü" * 50, "../../x"):
        for run in (options(path=f"/a/{stem}.py"), options(module=f"a.{stem}")):
            check_name(run.run_name)
            assert len(f"{run.run_name}-0123abcd") <= 32
            assert run.run_name not in (*BUNDLED, "launch")
            assert not set(run.run_name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_other_runs_and_a_name_that_was_given() -> None:
    assert RunOptions("pi", {"path": "x.py"}).script is None
    assert RunOptions("pi", {}).run_name == "pi"
    assert RunOptions("script", {"path": "/a/x.py"}, name="Best_1").run_name == "Best_1"
    assert matching_runs("pi-py", ["pi-py-83e8", "pi-1234"]) == ["pi-py-83e8"]
    runs = ["base-3f9a", "base-two-3f9a", "base-two-83e8"]
    assert matching_runs("base", runs) == ["base-3f9a"], "a name, though it begins others"
    assert matching_runs("base-two", runs) == runs[1:], "the name of several runs"


@pytest.mark.parametrize(
    ("program", "state", "result", "error_code", "expected"),
    [
        ("script", "succeeded", {"exit_code": 0}, None, 0),
        ("script", "failed", {"exit_code": 3}, 1, 3),
        ("script", "failed", {"exit_code": 139, "signal": "SIGSEGV"}, 1, 139),
        ("script", "failed", {"metrics": {"loss": 0.5}}, 124, 124),  # it was stopped
        ("script", "cancelled", None, 143, 143),
        ("script", "cancelled", None, None, 1),
        ("pi", "succeeded", {"exit_code": 3}, None, 0),  # a value of the program's own
        ("pi", "failed", None, 5, 5),
    ],
)
def test_a_run_has_the_exit_code_of_its_script_or_of_its_error(
    program: str, state: str, result: dict[str, Any] | None, error_code: int | None, expected: int
) -> None:
    event: dict[str, Any] = {"event": "result", "program": program, "state": state, "result": result}
    if error_code is not None:
        event["error"] = {"message": "m", "hint": "", "exit_code": error_code}
    assert exit_code(event) == expected
