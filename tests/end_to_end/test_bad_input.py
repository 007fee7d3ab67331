"""Bad input: one clear message with its place, a hint, the right exit code, nothing left."""

from __future__ import annotations

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


def test_wrong_usage(sandbox: Sandbox) -> None:
    """tests/cli/test_usage.py has more of it."""
    error = sandbox("up", "None.yaml", code=2).stderr
    assert error.startswith("error: None.yaml: no such file or directory\nhint: ")
    assert "TFCLUSTER_CLUSTER" not in error, "a variable that is not set is not blamed"


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
