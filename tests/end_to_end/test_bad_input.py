"""Bad input: one clear message with its place, a hint, the right exit code, nothing left."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace

import pytest

from tests.accounts import Account
from tests.clusters import sandbox_of
from tests.conftest import COMMAND, Sandbox, wait_for


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


def test_in_a_folder_that_was_deleted_a_cluster_is_started_used_and_stopped(sandbox: Sandbox) -> None:
    """tests/cli/test_bad_input.py has what cannot be done there."""
    spec, gone = sandbox.spec("name: far\njobs:\n  worker: {tasks: 1}\n", "far.yaml"), sandbox.folder / "gone"
    for line in (["up", spec], ["exec", "--", "true"], ["down"]):
        gone.mkdir()
        words = ("sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *sandbox.command, *line)
        result = sandbox.execute(*words, cwd=gone)
        assert result.returncode == 0, (line, result)


@pytest.mark.slow
@pytest.mark.needs("root")
def test_an_account_without_a_name_or_a_home() -> None:
    """A user id without an entry in /etc/passwd, as `docker run --user` makes it."""
    owner = Account("", 54321)
    with sandbox_of(owner) as sandbox:
        spec = sandbox.spec("name: who\njobs:\n  worker: {tasks: 1}\n")
        homeless = replace(sandbox, command=owner.command("env", "-u", "HOME", "-u", "XDG_STATE_HOME", *COMMAND))
        for command in ("doctor", "up"):
            result = homeless(command, spec, code=1)
            assert "this account has no home folder: HOME is not set" in result.stdout + result.stderr
        homeless = replace(sandbox, command=owner.command("env", "-u", "HOME", *COMMAND))
        homeless("up", spec)
        homeless("down")


@pytest.mark.slow
@pytest.mark.needs("root")
def test_a_host_whose_account_has_no_home_keeps_the_code_in_the_folder_for_its_state() -> None:
    owner = Account("", 54321)
    with sandbox_of(owner) as owned:
        sandbox = replace(owned, command=COMMAND)
        state = sandbox.folder / "far"
        state.mkdir()
        os.chown(state, owner.uid, owner.uid)
        way = sandbox.spec(f'#!/bin/sh\nexec {shlex.join(owner.command("env", "-i", "-C", str(state)))} "$@"\n', "way")
        way.chmod(0o755)
        host = {"address": "127.0.0.1", "connect": str(way), "python": sys.executable}
        for keys, code in ((host, 1), ({**host, "state": str(state)}, 0)):
            spec = sandbox.spec(json.dumps({"name": "who", "hosts": {"box": keys}, "jobs": {"worker": {"tasks": 1}}}))
            for command in ("doctor", "up"):
                result = sandbox(command, spec, code=code)
                assert ("account has no home folder" in result.stdout + result.stderr) == bool(code), command
        assert sorted(path.name for path in state.iterdir()) == [".code", "who"]
        sandbox("down")
