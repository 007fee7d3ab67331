"""Runs belong to the cluster: detached, listed, attached to, cancelled; they outlive their agent and share nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.conftest import SCRIPTS, Command, Sandbox, lines_of, read_until, wait_for

SPEC = "name: busy\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\nrestart: {policy: never}\n"
VARIABLES = (SCRIPTS / "make_variables.py").read_text()
LOOK = (SCRIPTS / "look_for_variables.py").read_text()
#: Counts to one: the zero it knows, the one it has the cluster compute, once there is a file that says so.
WAIT = """
import os, time
from tfcluster import map_reduce

print(0)
while not os.path.exists("go"):
    time.sleep(0.05)
print(map_reduce(lambda shard: shard, 2))
"""
#: Says what number comes next, for ever; it leaves the processors to others.
COUNT = "import itertools, time\nfor number in itertools.count():\n    print(number)\n    time.sleep(0.05)\n"


def record(sandbox: Sandbox, run: str) -> Any:
    return next(each for each in sandbox.json("runs") if each["run"] == run)


def driver_of(sandbox: Sandbox, run: str) -> int:
    return int(wait_for(lambda: [pid for pid, title in sandbox.processes().items() if title.endswith(f" {run}")])[0])


def reaches(sandbox: Sandbox, run: str, state: str) -> None:
    wait_for(lambda: record(sandbox, run)["state"] == state)


def numbers(found: list[dict[str, Any]]) -> list[int]:
    lines = [event["line"] for event in found if event["event"] == "output"]
    return [int(line) for line in lines if line.isdigit()]  # TensorFlow has its own to say


def output_of(sandbox: Sandbox, *arguments: str) -> list[str]:
    found = sandbox.json_lines("run", *arguments)
    return [event["line"] for event in found if event["event"] == "output" and event["line"].startswith("[")]


def start_into_file(sandbox: Sandbox, name: str, *arguments: str) -> Command:
    """Start a run whose events go to a file, which can be read while it goes on, and wait until it says something."""
    path = sandbox.folder / name
    with path.open("w") as file:
        command = sandbox.start("run", "-o", "json", *arguments, stdout=file, stderr=None)
    wait_for(lambda: path.read_text().count("\n") > 1)
    return command


def test_a_detached_run_is_listed_attached_to_and_cancelled(demo: Sandbox) -> None:
    demo.spec(COUNT, "count.py")
    run = demo("run", "--detach", "count.py", "on").stdout.strip()
    reaches(demo, run, "running")
    attached = demo.start("attach", run[:-1], "-o", "json")
    seen = [json.loads(attached.stdout.readline())]
    while not numbers(seen):  # what TensorFlow says, or that it is being imported, may come before
        seen.append(json.loads(attached.stdout.readline()))
    assert (seen[0]["event"], numbers(seen)) == ("run", [0])
    attached.send_signal(signal.SIGINT)
    assert "detached; stop it with `tfcluster cancel" in attached.communicate(timeout=60)[1]
    assert attached.returncode == 130
    listed = record(demo, run)
    assert (listed["state"], listed["parameters"]["args"]) == ("running", ["on"])
    watching = demo.start("attach", run)
    assert demo("cancel", run).stdout == f"{run} cancelled\n"
    assert record(demo, run)["state"] == "cancelled"
    _, said = watching.communicate(timeout=60)
    assert (watching.returncode, f"{run} was cancelled" in said) == (1, True)
    assert record(demo, run)["state"] == "cancelled"
    assert demo.json("cancel", run)["state"] == "cancelled", "it is left as it is"
    assert "no run 'nobody'" in demo("attach", "nobody", code=2).stderr
    assert "no run 'nobody'" in demo("cancel", "nobody", code=2).stderr
    result = demo.json("run", "pi", "--samples", "1000", "--seed", "3")
    (last,) = demo.json("runs", "-n", "1")
    assert (last["run"], last["result"]) == (result["run"], result["result"])
    assert last["started"] + last["seconds"] <= last["ended"] + 0.1 <= time.time() + 0.1, "by two clocks"
    assert lines_of(demo("attach", last["run"], "-o", "json").stdout)[-1] == result
    latest = demo("attach")
    assert f"the latest run is {last['run']}\n" in latest.stderr
    assert latest.stdout == demo("attach", last["run"]).stdout
    others = sorted([demo.json("run", "pi", "--samples", "10", "--name", "twin")["run"] for _ in range(2)])
    for command in ("logs", "attach", "runs"):
        assert f"several runs begin with 'twin': {', '.join(others)}" in demo(command, "twin", code=2).stderr
    unknown = demo("logs", "nobody", code=2).stderr
    assert "no task or run 'nobody'" in unknown
    assert "The tasks are ps:0, worker:0, worker:1. `tfcluster runs` lists the runs." in unknown
    for command in ("runs", "logs", "events"):  # of a cluster on other hosts nothing may be known here
        error = demo(command, "-c", "never", code=3).stderr
        assert "cluster 'never' is not running" in error
        assert "run this command in the folder of its cluster.yaml" in error


def test_a_wait_ends_with_the_run_and_has_its_exit_code(demo: Sandbox) -> None:
    (demo.folder / "ends.py").write_text(
        "import os, sys, time\nwhile not os.path.exists('ends'):\n    time.sleep(0.02)\nsys.exit(7)\n"
    )
    run = demo("run", "--detach", "ends.py").stdout.strip()
    other = demo("run", "pi", "--samples", "1e4", "--detach", "--name", "quick").stdout.strip()
    assert demo("wait", "quick").stdout == f"{other} succeeded\n"
    error = demo("wait", run, "--timeout", "0.1", code=124).stderr
    assert error.startswith(f"error: {run} did not end within 0.1 s\nhint: The runs continue: ")
    waiting = [demo.start("wait", other, run), demo.start("wait", run, "-o", "json")]
    assert waiting[0].stdout.readline() == f"{other} succeeded\n"
    demo.kill_agent()
    (demo.folder / "ends").touch()
    output, error = waiting[0].communicate(timeout=120)
    assert (output, waiting[0].returncode) == (f"{run} failed\n", 7), error
    result = json.loads(waiting[1].communicate(timeout=120)[0])
    assert (result["event"], result["run"], result["result"]) == ("result", run, {"exit_code": 7})
    assert waiting[1].returncode == demo("attach", run, code=7).returncode
    assert "nothing" in demo("wait", "nothing", code=2).stderr
    assert "--ready" in demo("wait", code=2).stderr


@pytest.mark.slow
def test_two_runs_at_once_share_no_variable_and_leave_none(demo: Sandbox) -> None:
    demo.spec(VARIABLES, "variables.py")
    one, other = (demo("run", "--detach", "variables.py", "hold", "").stdout.strip() for _ in range(2))
    for run in (one, other):
        read_until(demo.start("logs", run, "-f").stdout, "[True, True]")
        assert output_of(demo, "variables.py", "look", run) == ["[True, True]"]
    assert output_of(demo, "variables.py", "make", "of-nobody") == ["[True, True]"]
    assert output_of(demo, "variables.py", "make", "") == ["[True, True]"]
    finished = demo.last_run()["run"]
    os.kill(driver_of(demo, one), signal.SIGKILL)
    reaches(demo, one, "failed")
    assert f"the driver of {one} died (SIGKILL); its last output:" in record(demo, one)["error"]["message"]
    assert output_of(demo, "variables.py", "look", other) == ["[True, True]"], "another run's stay"
    demo("cancel", other)
    reaches(demo, other, "cancelled")

    def all_are_forgotten() -> bool:  # a server that is busy when a run ends is asked once more
        looks = [output_of(demo, "variables.py", "look", run) for run in (one, other, finished)]
        return looks == [["[False, False]"]] * 3

    wait_for(all_are_forgotten)
    assert output_of(demo, "variables.py", "look", "of-nobody") == ["[True, True]"]


@pytest.mark.slow
def test_what_bundled_programs_train_is_each_runs_own_and_gone_with_it(demo: Sandbox) -> None:
    demo.spec(LOOK, "look.py")
    expfit = ("expfit", "--mode", "data-parallel", "--batch", "4")
    demo("run", *expfit, "--steps", "10")
    demo("run", *expfit, "--lr", "1e9", "--steps", "100", code=1)
    succeeded, failed = (each["run"] for each in demo.json("runs", "-n", "2"))
    cancelled = demo("run", *expfit, "--steps", "1e8", "--detach").stdout.strip()
    killed = demo("run", "linear", "--steps", "1e15", "--detach").stdout.strip()
    trained = [f"{run}:double:data-parallel/hidden" for run in (cancelled, succeeded, failed)]
    trained += [f"{killed}:double:w", ":double:data-parallel/hidden", ":double:w"]

    def there() -> list[bool]:
        (line,) = output_of(demo, "look.py", *trained)
        return list(json.loads(line.lower()))

    wait_for(lambda: there() == [True, False, False, True, False, False])
    os.kill(driver_of(demo, killed), signal.SIGKILL)
    demo("cancel", cancelled)
    reaches(demo, killed, "failed")
    reaches(demo, cancelled, "cancelled")
    wait_for(lambda: not any(there()))


@pytest.mark.slow
def test_runs_outlive_their_agent(sandbox: Sandbox) -> None:
    sandbox.spec(COUNT, "count.py")
    sandbox.spec(WAIT, "waits.py")
    sandbox("up", sandbox.spec(SPEC))
    detached = sandbox("run", "--detach", "count.py").stdout.strip()
    driver = driver_of(sandbox, detached)
    commands = {
        "interrupted": start_into_file(sandbox, "interrupted", "count.py"),
        "answer": start_into_file(sandbox, "answer", "waits.py"),
        "bound": start_into_file(sandbox, "bound", "--timeout", "10", "count.py"),
    }
    sandbox.kill_agent()
    alive = sandbox.processes().values()
    for name in commands:
        run = json.loads((sandbox.folder / name).read_text().splitlines()[0])["run"]
        assert any(title.endswith(f" {run}") for title in alive), f"{name} has outlived the agent"
    (sandbox.folder / "go").touch()
    sandbox.wait_until("running")
    commands["interrupted"].send_signal(signal.SIGINT)
    codes, read = {}, {}
    for name, command in commands.items():
        codes[name] = command.wait(90)
        read[name] = lines_of((sandbox.folder / name).read_text())
        folder = next(sandbox.folder.glob(f"state/**/{read[name][0]['run']}"))
        own = [event for event in read[name] if event["event"] != "output"]
        assert own == lines_of((folder / "events.jsonl").read_text()), "none is missing, none comes twice"
        said = numbers(read[name])
        assert said == list(range(len(said)))
    assert codes == {"answer": 0, "bound": 124, "interrupted": 130}
    assert (numbers(read["answer"]), read["answer"][-1]["result"]) == ([0, 1], {"exit_code": 0})
    assert read["bound"][-1]["error"]["message"].endswith("timed out after 10 s")
    assert read["interrupted"][-1]["state"] == "cancelled"
    assert driver_of(sandbox, detached) == driver, "it goes on"
    sandbox.kill_agent()
    os.kill(driver, signal.SIGKILL)
    died = sandbox("attach", detached, code=1).stderr
    # How a process ended that is not its child an agent knows from Linux 6.15 on.
    how = f"the driver of {detached} died "
    assert f"{how}(SIGKILL); its last output:" in died or f"{how}(exit status unknown); its last output:" in died
    last = sandbox("run", "--detach", "count.py").stdout.strip()
    driver_of(sandbox, last)
    sandbox.kill_agent()
    sandbox("down")
    assert sandbox.leftovers() == []
    ends = {run["run"]: run["state"] for run in sandbox.json("runs", "-c", "busy")}
    wanted_ends = {"answer": "succeeded", "bound": "failed", "interrupted": "cancelled"}
    by_run = {read[name][0]["run"]: state for name, state in wanted_ends.items()}
    assert ends == {**by_run, detached: "failed", last: "cancelled"}
    assert "was cancelled" in sandbox("attach", "-c", "busy", last, code=1).stderr
    sandbox("logs", "-c", "busy", last)


@pytest.mark.slow
def test_a_run_ends_when_no_task_remains(sandbox: Sandbox) -> None:
    sooner = sandbox.with_settings({"RUN_ALL_TASKS_LOST_SECONDS": 0.5})
    sandbox("up", sandbox.spec(SPEC), env=sooner)
    sandbox.spec("import time\nwhile True:\n    time.sleep(60)\n", "waits.py")
    run = sandbox("run", "--detach", "waits.py").stdout.strip()
    for pid in sandbox.tasks("pid").values():
        os.kill(pid, signal.SIGKILL)
    error = sandbox("attach", run, code=1).stderr
    for died in ("ps:0 died (SIGKILL) and lost its variables", "worker:0 died (SIGKILL)", "worker:1 died (SIGKILL)"):
        assert f"{died} and has failed" in error
    assert f" during {run}\n" in error


@pytest.mark.slow
def test_an_upload_that_stops_is_bounded_and_leaves_nothing(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))

    def uploading(*options: str) -> Command:
        command = sandbox.start("run", "script", *options, "-", stdin=subprocess.PIPE)
        command.stdin.write("# begun\n" * 5000)  # what the pipe holds, so that the command may be late, or gone
        command.stdin.flush()
        return command

    late = uploading("--timeout", "3")
    assert late.wait(60) == 124
    late.communicate()
    gone = uploading()
    wait_for(lambda: [path for path in sandbox.folder.glob("state/**/upload/*") if path.stat().st_size])
    gone.kill()
    gone.communicate()
    wait_for(lambda: [run["state"] for run in sandbox.json("runs")] == ["failed", "cancelled"])
    wait_for(lambda: not list(sandbox.folder.glob("state/**/upload")))
