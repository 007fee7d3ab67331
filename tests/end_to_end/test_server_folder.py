"""The folder of servers, where relative paths in graphs begin, and their secrets, which nothing shows or keeps."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.conftest import COMMAND, SCRIPTS, Sandbox, wait_for

SPEC = "name: here\njobs: {{worker: {{tasks: 1}}}}\nnetwork: {network}\n"


def folder_of(sandbox: Sandbox, task: str = "worker:0") -> str:
    return os.readlink(f"/proc/{sandbox.task(task)['pid']}/cwd")


def restart_by_death(sandbox: Sandbox) -> None:
    pid = sandbox.task("worker:0")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][0]["pid"] != pid)


@pytest.fixture
def project(sandbox: Sandbox) -> Path:
    folder = sandbox.folder / "a project"
    folder.mkdir()
    return folder


def test_servers_run_in_the_folder_of_the_spec(sandbox: Sandbox, project: Path) -> None:
    """After a restart by the next agent, too; when the folder was deleted, elsewhere."""
    spec = project / "cluster.yaml"
    spec.write_text(SPEC.format(network="closed"))
    sandbox("up", "cluster.yaml", cwd=project)
    assert folder_of(sandbox) == str(project)
    sandbox.kill_agent()
    restart_by_death(sandbox)
    assert folder_of(sandbox) == str(project)
    shutil.rmtree(project)
    restart_by_death(sandbox)
    state = sandbox.folder / "state" / "tfcluster" / "here" / "localhost" / "files"
    assert folder_of(sandbox) == str(state)
    assert f"this server does not run in {project}: No such file or directory" in sandbox("logs", "worker:0").stdout
    sandbox("down")
    assert not state.exists(), "it is empty"


CHECKPOINT = (SCRIPTS / "saves_checkpoint.py").read_text()


@pytest.mark.slow
def test_relative_paths_in_a_graph_begin_in_the_folder_of_the_spec(sandbox: Sandbox, project: Path) -> None:
    """From another folder, the error has the absolute path."""
    (project / "cluster.yaml").write_text("jobs: {ps: {tasks: 1}, worker: {tasks: 1}}\nname: here\n")
    sandbox("up", cwd=project)
    for folder in project, sandbox.folder:
        (folder / "data.txt").write_text("first line\n")
        (folder / "train.py").write_text(CHECKPOINT)
    result = sandbox("run", "train.py", cwd=project)
    assert result.stdout == "read b'first line'\nsaved ckpt/ckpt-1\n"
    shutil.rmtree(project / "ckpt")
    for path in "ckpt/ckpt-1", "data.txt":
        result = sandbox.execute(*COMMAND, "run", "train.py")
        assert f"give them absolute paths, here {sandbox.folder}/{path}" in result.stderr
        (project / "data.txt").unlink(missing_ok=True)


SECRETS = """
name: quiet
jobs:
  ps: {tasks: 1}
  worker: {tasks: 1, max: 2, env: {TOKEN: {secret: "${TOKEN}"}, PLAIN: "<${PLAIN}>"}}
"""


def test_a_secret_reaches_its_task_and_is_neither_shown_nor_kept(sandbox: Sandbox) -> None:
    """Even if it changes; tests/cli/test_variables.py has more commands."""
    spec, values = sandbox.spec(SECRETS), {"TOKEN": "xyzzy-1", "PLAIN": "plugh"}
    shown = [sandbox("up", spec, env=values)]
    variables = sandbox("env", "worker:0").stdout
    assert "xyzzy-1" in variables
    assert "<plugh>" in variables
    shown.append(sandbox("up", env={**values, "TOKEN": "xyzzy-2"}))
    assert "env TOKEN changed" in shown[-1].stdout
    assert "xyzzy-2" in sandbox("env", "worker:0").stdout
    shown += [sandbox("status", "-o", "json"), sandbox("logs"), sandbox("down"), sandbox("events")]
    for each in shown:
        assert "xyzzy" not in each.stdout + each.stderr, each.args
        assert "plugh" not in each.stdout + each.stderr, each.args
    state = [path for path in sandbox.folder.rglob("*") if path.is_file() and path.name != "cluster.yaml"]
    assert state
    assert not [path for path in state if b"xyzzy" in path.read_bytes()]
