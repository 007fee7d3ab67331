"""Bad input: one clear message with its place, a hint, the right exit code, nothing left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Sandbox, wait_for

BAD = """\
name: bad
jobs:
  ps: {tasks: -1}
  worker: {taks: 2}
  local: ["localhost:2222", "localhost:2222", "localhost:99999"]
network: shut
"""


@pytest.mark.parametrize("command", ["up", "validate"])
def test_every_problem_of_a_spec_at_once_each_with_its_place(sandbox: Sandbox, command: str) -> None:
    spec = sandbox.spec(BAD, "bad.yaml")
    error = sandbox(command, spec, code=2).stderr
    for place, words in {
        "3:15": "-1",
        "4:12": "did you mean 'tasks'",
        "5:29": "localhost:2222",
        "5:47": "99999",
        "6:10": "closed",
    }.items():
        line = next((line for line in error.splitlines() if f"bad.yaml:{place}: " in line), "")
        assert words in line, (place, error)
    assert sandbox.leftovers() == []


def test_validate_summarizes_a_valid_spec(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: good\njobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n")
    assert sandbox("validate").stdout == "cluster.yaml is valid: cluster 'good', 1 ps, 2 worker\n"
    topology = sandbox.json("validate", spec)
    assert topology["cluster"] == "good"
    assert len(topology["tasks"]) == 3


def test_validate_names_the_hosts_and_shows_no_value_of_a_variable(sandbox: Sandbox) -> None:
    sandbox.spec(
        "jobs: {a: {tasks: 3, env: {A: xyzzy, B: {secret: xyzzy}}}}\n"
        "hosts: {alpha: {address: 10.0.0.1, env: {C: xyzzy}}, beta: }\n"
    )
    assert sandbox("validate").stdout.endswith(", 3 a on alpha, beta\n")
    shown = sandbox("validate", "-o", "json").stdout
    assert "xyzzy" not in shown
    assert json.loads(shown)["tasks"][0]["env"] == {"C": "***", "A": "***", "B": "***"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "nowhere.yaml"], "nowhere.yaml"),
        (["up", "."], "."),
        (["up", "--cluster-spec", "worker|nowhere"], "nowhere"),
        (["up", "--timeout", "-1"], "--timeout"),
        (["run", "pi", "--timeout", "nan"], "nan is not a finite number"),
        (["run", "pi", "--timeout", "1e10"], "1e10 is more than 1e+09"),
        (["restart", "--grace", "nan"], "nan is not a finite number"),
        (["stauts"], "Did you mean 'status'?"),
        (["run", "pie"], "pi"),
        (["down", "--all", "-c", "x"], "not both"),
        (["status", "-o", "xml"], "'json'"),
    ],
)
def test_wrong_usage(sandbox: Sandbox, arguments: list[str], words: str) -> None:
    assert words in sandbox(*arguments, code=2).stderr


def test_no_variable_is_blamed_that_is_not_set(sandbox: Sandbox) -> None:
    assert "TFCLUSTER_CLUSTER" not in sandbox("up", "None.yaml", code=2).stderr


@pytest.mark.slow
def test_a_state_folder_that_cannot_be_made(sandbox: Sandbox) -> None:
    spec = sandbox.spec("jobs:\n  worker: {tasks: 1}\n")
    error = sandbox("up", spec, code=1, env={"XDG_STATE_HOME": "/proc/nothing"}).stderr
    assert "/proc/nothing" in error
    assert "XDG_STATE_HOME" in error


def test_a_socket_folder_that_others_can_enter(sandbox: Sandbox) -> None:
    folder = sandbox.folder / "run" / "tfcluster"
    folder.mkdir(mode=0o755)
    error = sandbox("up", sandbox.spec("jobs:\n  worker: {tasks: 1}\n"), code=1).stderr
    assert f"{folder}: not a folder that only you can enter (mode 0755)" in error


def test_a_runtime_folder_too_long_for_a_socket(sandbox: Sandbox, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir(mode=0o700)
    spec = sandbox.spec(f"name: {'n' * 63}\njobs:\n  worker: {{tasks: 1}}\n")
    environment = {"XDG_RUNTIME_DIR": str(long)}
    sandbox("up", spec, env=environment)
    sandbox("down", env=environment)


def test_without_tensorflow_the_error_names_what_to_install(sandbox: Sandbox) -> None:
    """A stand-in for a Python that has no TensorFlow: one in which it cannot be found."""
    hidden = sandbox.folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'tensorflow' else found(name, *rest)\n"
    )
    path = f"{hidden}:{sandbox.environment['PYTHONPATH']}"
    error = sandbox("up", sandbox.spec("jobs:\n  worker: {tasks: 1}\n"), code=1, env={"PYTHONPATH": path}).stderr
    assert "TensorFlow is not installed" in error
    assert "pip install tensorflow" in error
    wait_for(lambda: not sandbox.leftovers())
