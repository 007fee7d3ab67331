"""`tfcluster stack`: where a script is, whatever it does, and what the server of a task does."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from tests.conftest import SCRIPTS, Command, Sandbox, mostly_slow, wait_for

SCRIPT = (SCRIPTS / "waits_in_threads.py").read_text()


def start(demo: Sandbox, *arguments: str, env: dict[str, str] | None = None) -> tuple[Command, str]:
    script = demo.folder / "waits.py"
    script.write_text(SCRIPT)
    command = demo.start("run", script, *arguments, env=env, stdin=subprocess.PIPE)
    assert command.stdout.readline() == "ready\n"
    return command, str(demo.last_run()["run"])


def functions(process: dict[str, Any]) -> list[list[str]]:
    return [[frame["function"] for frame in thread["frames"]] for thread in process["threads"]]


@pytest.mark.parametrize("env", mostly_slow([{}, {"OMP_NUM_THREADS": "3"}], fast=[{}]), ids=["warm", "fresh"])
def test_a_script_goes_on_while_all_threads_of_its_processes_are_shown(demo: Sandbox, env: dict[str, str]) -> None:
    command, run = start(demo, env=env)
    for _ in range(3):
        program, child = demo.json("stack", run)["processes"]  # `sleep` executes no Python, and lives on
        main, thread = functions(program)
        assert main == ["<module>"]
        assert thread[0] == "sleep_in_thread"
        assert program["threads"][0]["name"] == "main"
        assert "sleep_in_child" in functions(child)[0]
    shown = demo("stack", run[:-1]).stdout
    line = next(number for number, text in enumerate(SCRIPT.splitlines(), 1) if "readline" in text)
    assert f'File "{demo.folder}/waits.py", line {line}, in <module>' in shown
    assert f"process {program['pid']}: tfcluster: demo {run} program" in shown
    output, _ = command.communicate("typed\n", timeout=60)
    assert output == "end typed 0\n"
    error = demo("stack", run, code=1).stderr
    assert f"{run} has ended" in error


@pytest.mark.slow
def test_code_that_holds_pythons_lock_is_shown_too(demo: Sandbox) -> None:
    command, run = start(demo, "hold")
    wait_for(lambda: any("hold_the_lock" in each for each in functions(demo.json("stack", run)["processes"][0])))
    program = demo.json("stack", run)["processes"][0]["pid"]
    os.kill(program, signal.SIGSTOP)
    stopped = demo.json("stack", run)["processes"][0]
    assert stopped["threads"] == []
    assert f"kill -CONT {program}" in stopped["problem"]
    os.kill(program, signal.SIGCONT)
    os.kill(program, signal.SIGKILL)
    command.communicate(timeout=60)


def test_of_a_task_its_state_its_threads_and_its_last_lines_are_shown(demo: Sandbox) -> None:
    task = demo.json("stack", "/job:worker/task:1")
    assert (task["task"], task["state"], task["problem"]) == ("/job:worker/task:1", "ready", "")
    assert len(task["threads"]) > 1
    assert all(thread["state"] in "RSD" for thread in task["threads"])
    assert task["log"] == demo("logs", "worker:1", "--no-prefix", "-n", str(len(task["log"]))).stdout.splitlines()
    os.kill(task["pid"], signal.SIGSTOP)
    try:
        shown = demo("stack", "worker:1").stdout
        assert f"worker:1 is frozen: a signal (SIGSTOP) has stopped its process, {task['pid']}" in shown
        assert f"`kill -CONT {task['pid']}` resumes it" in shown
    finally:
        os.kill(task["pid"], signal.SIGCONT)
    assert "it answers" in demo("stack", "worker:1").stdout


@pytest.mark.parametrize("name", ["worker:7", "/job:worker", "nothing-1234"])
def test_a_name_that_is_not_of_one_task_or_run_is_refused(demo: Sandbox, name: str) -> None:
    assert f"'{name}'" in demo("stack", name, code=2).stderr
