"""run pi: the same answer from any devices, progress, failures that are named, cancelling."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Sandbox, lines_of, mostly_slow, wait_for

STRICT = "name: strict\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\nrestart: {policy: never}\n"


def test_events_end_with_the_result(demo: Sandbox) -> None:
    *earlier, result = demo.json_lines("run", "pi", "--samples", "20_000_001", "--seed", "7")
    assert earlier[0]["event"] == "run"
    assert {event["event"] for event in earlier[1:]} <= {"progress"}
    assert list(result) == ["event", "run", "program", "state", "seconds", "result", "devices", "notes"]
    assert (result["event"], result["program"], result["state"]) == ("result", "pi", "succeeded")
    found = result["result"]
    assert list(found) == ["pi", "stderr", "interval", "samples", "inside", "samples_per_s", "seed"]
    assert found["samples"] == 20_000_001
    assert found["pi"] == 4 * found["inside"] / found["samples"]
    assert abs(found["pi"] - 3.14159265) < 5 * found["stderr"]
    assert sum(work["samples"] for work in result["devices"].values()) == 20_000_001
    assert all(work["ops"] > 0 for work in result["devices"].values())
    assert demo.status()["runs"][-1]["state"] == "succeeded"


def test_a_program_is_that_of_the_cluster_and_its_options_those_of_the_command(demo: Sandbox, tmp_path: Path) -> None:
    """In a folder with a tfcluster of its own, with an option from the environment."""
    (tmp_path / "tfcluster" / "programs").mkdir(parents=True)
    for path in ("__init__.py", "programs/__init__.py", "programs/pi.py", "programs/threefry.py"):
        (tmp_path / "tfcluster" / path).write_text("raise SystemExit('not this one')")
    env = {"TFCLUSTER_RUN_SAMPLES": "4_321", "TFCLUSTER_CLUSTER": "demo"}
    installed = Path(sys.executable).with_name("tfcluster")  # `python -m tfcluster` imports from the folder
    run = demo.execute(installed, "run", "pi", "--seed", "7", "-o", "json", cwd=tmp_path, env=env)
    result = lines_of(run.stdout)[-1]
    assert (result["result"]["samples"], result["result"]["seed"]) == (4321, 7)
    record = demo.json("runs", result["run"])
    assert (record["program"], record["parameters"]) == ("pi", {"samples": 4321, "seed": 7})


def test_the_example_does_what_pi_does_as_a_script(demo: Sandbox) -> None:
    words = ("run", "--seed", "7", ROOT / "examples" / "pi.py", "--points", "3_000_000")
    first, second = (demo.json_lines(*words)[-1] for _ in range(2))
    value = first["result"]["value"]
    assert value == second["result"]["value"], "the same seed"
    assert abs(value["pi"] - 3.14159265) < 5 * value["stderr"]
    assert (value["points"], value["seed"], first["result"]["exit_code"]) == (3_000_000, 7, 0)
    assert sum(work["points"] for work in first["devices"].values()) == 3_000_000


@pytest.mark.slow
def test_runs_of_other_sizes_before_do_not_disturb(demo: Sandbox) -> None:
    """A server keeps compiled functions by name: a small run's must not be taken for a large run's."""
    for samples in ("1e5", "1e7", "3e8", "1e7"):
        result = demo.json("run", "pi", "--samples", samples, "--seed", "7")["result"]
        assert abs(result["pi"] - 3.14159265) < 5 * result["stderr"], samples


def test_a_seed_is_chosen_and_shown(demo: Sandbox) -> None:
    first = demo.json("run", "pi", "--samples", "1000")["result"]
    again = demo.json("run", "pi", "--samples", "1000", "--seed", str(first["seed"]))["result"]
    assert first["inside"] == again["inside"]


@pytest.mark.slow
def test_a_huge_run_is_bounded_in_memory_and_by_its_timeout(demo: Sandbox) -> None:
    demo("run", "pi", "--samples", "3e8")  # as many compile what many more do
    before = max(demo.tasks("rss_bytes").values())
    process = demo.start("run", "pi", "--samples", "1e14", "-o", "json")
    first, *others = [json.loads(process.stdout.readline())["event"] for _ in range(12)]
    assert (first, set(others)) == ("run", {"progress"})
    after = max(demo.tasks("rss_bytes").values())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert after < before + 200 * 2**20, "a shard of 2^22 points would be 32 MB for each of its many operations"
    final = demo.json("run", "pi", "--samples", "1e14", "--timeout", "0.5", code=124)
    assert final["state"] == "failed"
    assert final["error"]["message"].endswith("timed out after 0.5 s")


@pytest.mark.parametrize("number", mostly_slow([signal.SIGINT, signal.SIGTERM], fast=[signal.SIGINT]))
def test_an_interrupt_cancels_the_run_and_leaves_the_cluster_well(demo: Sandbox, number: signal.Signals) -> None:
    pids = demo.tasks("pid")
    process = demo.start("run", "pi", "--samples", "1e14", "-o", "json")
    run = json.loads(process.stdout.readline())["run"]
    json.loads(process.stdout.readline())  # it makes progress
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in error
    assert lines_of(output)[-1]["state"] == "cancelled"
    fixed = {"program": "pi", "script": None, "state": "cancelled", "gpu_memory_bytes": None}
    assert demo.status()["runs"][-1] | {"seconds": 0} == {"run": run, "seconds": 0, "members": [], **fixed}
    assert not demo.pids(run), "the driver has ended"
    assert demo.tasks("pid") == pids
    demo("run", "pi", "--samples", "1e5")


@pytest.mark.slow
def test_a_task_that_does_not_answer_is_named_at_once(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(STRICT))
    os.kill(sandbox.task("worker:0")["pid"], signal.SIGSTOP)

    def refused() -> str | None:
        run = sandbox("run", "pi", "--strict", code=None, timeout=30)
        return run.stderr if run.returncode else None

    # An agent that stood still itself, as the whole machine may, does not blame a server; pi then does without it.
    error = wait_for(refused)
    assert "worker:0 at localhost:" in error
    assert "does not answer" in error


@pytest.mark.slow
def test_a_task_that_dies_in_mid_run_is_named_and_at_once_by_the_next_run(sandbox: Sandbox) -> None:
    """It keeps the weights; a worker that dies is in the tests of lost tasks."""
    sandbox("up", sandbox.spec(STRICT))
    process = sandbox.start("run", "expfit", "--mode", "data-parallel", "--steps", "1e8", "-o", "json")
    for _ in range(2):
        process.stdout.readline()
    os.kill(sandbox.task("ps:0")["pid"], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    final = lines_of(output)[-1]
    assert final["state"] == "failed"
    first, second = final["error"]["message"].splitlines()
    assert first == "ps:0 died (SIGKILL) and lost its variables and has failed"
    assert second.startswith("after that, one of the tasks worker:0, worker:1, ps:0 was lost: ")
    error = sandbox("run", "pi", "--strict", code=4, timeout=30).stderr
    assert error.startswith(f"error: {first}\nhint: ")
    assert len(sandbox.status(code=4)["runs"]) == 1, "what cannot begin is no run"


_LATE_DRIVER = """
import time
inner = main

def main(*args):
    time.sleep(2)
    return inner(*args)
"""


@pytest.mark.slow
def test_an_interrupt_that_reaches_a_driver_that_was_just_forked_interrupts_its_run(sandbox: Sandbox) -> None:
    fault = sandbox.with_fault("tfcluster.processes.runs.run_driver", _LATE_DRIVER)
    sandbox("up", sandbox.spec(STRICT), env=fault)
    command = sandbox.start("run", sandbox.spec("import time\ntime.sleep(600)\n", "sleeps.py"))
    wait_for(lambda: [run["state"] for run in sandbox.json("runs")] == ["running"])
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=60)
    assert command.returncode == 130
    assert [run["state"] for run in sandbox.json("runs")] == ["cancelled"]
