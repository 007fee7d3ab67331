"""The record of a run says what it was started from; rerun does it again; a name is as good as an id."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Sandbox, make_sandbox
from tfcluster import __version__

pytestmark = pytest.mark.usefixtures("cold")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A cluster of one task."""
    with make_sandbox(tmp_path_factory.mktemp("one")) as sandbox:
        sandbox("up", sandbox.spec("name: one\njobs: {worker: {tasks: 1, cpus: 2}}\n"))
        yield sandbox


def git(folder: Path, command: str) -> str:
    words = "git -c user.name=t -c user.email=t@t "
    return subprocess.run(
        command.replace("git ", words), shell=True, cwd=folder, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


@pytest.mark.slow
def test_a_script_is_run_again_and_what_has_changed_is_said(one: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], os.path.basename(os.getcwd()))\nsys.exit(3)\n")
    (tmp_path / "other.py").touch()
    (tmp_path / "below").mkdir()
    commit = git(tmp_path, "git init -q && git add . && git commit -qm one && git rev-parse HEAD")
    words = (
        "run",
        "script",
        "--name",
        "base.1",
        "--timeout",
        "70",
        "--start-timeout",
        "60",
        "../train.py",
        "--name",
        "x y",
    )
    one(*words, cwd=tmp_path / "below", env={"TFCLUSTER_CLUSTER": "one"}, code=3)
    record = one.json("runs", "base.1")
    assert record["run"].startswith("base.1-")
    assert record["parameters"]["args"] == ["--name", "x y"]
    assert record["parameters"]["path"] == f"{tmp_path}/below/../train.py"
    origin = record["origin"]
    assert (origin["commit"], origin["is_clean"], origin["version"]) == (commit, True, __version__)
    assert origin["start_timeout"] == 60.0
    assert f"commit     {commit} (clean)\n" in one("runs", "base.1").stdout

    again = one("rerun", "base.1", code=3)
    assert (again.stdout, again.stderr) == ("['--name', 'x y'] below\n", "")
    latest = one.json("runs", "-n", "1")[0]
    assert {**latest, "timeout": 70.0}["parameters"] == record["parameters"]
    assert (latest["program"], latest["timeout"], latest["origin"]) == ("script", 70.0, origin)

    (tmp_path / "other.py").write_text("changed")
    assert one("rerun", record["run"], code=3).stderr == (
        f"{record['run']} ran at commit {commit[:10]}; now it is commit {commit[:10]} with changes\n"
    )
    script.write_text("print('new')\n")
    later = git(tmp_path, "git commit -qam two && git rev-parse HEAD")
    changed = one("rerun", record["run"], "--name", "base.2")
    assert changed.stdout == "new\n"
    assert changed.stderr.splitlines() == [
        f"train.py has changed since {record['run']}",
        f"{record['run']} ran at commit {commit[:10]}; now it is commit {later[:10]}",
    ]
    assert one.json("runs", "-n", "1")[0]["run"].startswith("base.2-")
    script.unlink()
    gone = one("rerun", "base.1", code=2).stderr
    assert f"train.py: the script of {record['run']} is not there any more" in gone


def test_a_program_is_run_again_with_the_same_seed_and_a_file_but_not_with_a_pipe(one: Sandbox) -> None:
    first = one.json("run", "pi", "--samples", "1e4", "--devices", "/job:worker/task:0/device:CPU:1")
    again = one.json("rerun", first["run"])
    values = [{name: result["result"][name] for name in ("inside", "seed")} for result in (first, again)]
    assert values[0] == values[1]
    assert list(again["devices"]) == ["/job:worker/task:0/device:CPU:1"]

    one.spec("x,y\n1,2\n2,4\n3,6\n", "points.csv")
    trained = one.json("run", "linear", "--data", "points.csv", "--steps", "5", "--seed", "1", "--sync")
    assert one.json("rerun", trained["run"], code=0)["result"]["w"] == trained["result"]["w"]
    run = subprocess.run(
        [*one.command, "run", "mean", "-", "-o", "json"],
        input="1\n2\n",
        cwd=one.folder,
        env=one.environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    name = json.loads(run.stdout.splitlines()[-1])["run"]
    assert f"{name} read a pipe or its standard input, which is gone" in one("rerun", name, code=2).stderr


def test_a_name_is_as_good_as_an_id_while_it_is_unique(one: Sandbox) -> None:
    words = ("run", "graph", "1", "--name", "try")
    (name,) = [one.json(*words)["run"]]
    longer = one.json("run", "graph", "2", "--name", "try-2")["run"]
    assert one.json("attach", "try")["run"] == name, "not the one whose name is longer"
    assert one.json("attach", "try-2")["run"] == longer
    second = one.json(*words)["run"]
    error = one("attach", "try", code=2).stderr
    assert f"several runs begin with 'try': {', '.join(sorted((name, second)))}" in error
    assert "'../x' cannot be the name of a run" in one("run", "graph", "1", "--name", "../x", code=2).stderr
    assert "no run 'nothing'" in one("runs", "nothing", code=2).stderr
