"""The record of a run says what it was started from; rerun does it again; a name is as good as an id."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tfcluster import __version__


def git(folder: Path, command: str) -> str:
    words = "git -c user.name=t -c user.email=t@t "
    return subprocess.run(
        command.replace("git ", words), shell=True, cwd=folder, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


@pytest.mark.slow
@pytest.mark.needs("git")
def test_a_script_is_run_again_and_what_has_changed_is_said(demo: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], os.path.basename(os.getcwd()))\nsys.exit(3)\n")
    (tmp_path / "other.py").touch()
    (tmp_path / "below").mkdir()
    commit = git(tmp_path, "git init -q && git add . && git commit -qm one && git rev-parse HEAD")
    options = ["--name", "base.1", "--timeout", "70", "--start-timeout", "60"]
    env = {"TFCLUSTER_CLUSTER": "demo"}
    demo("run", "script", *options, "../train.py", "--name", "x y", cwd=tmp_path / "below", env=env, code=3)
    record = demo.json("runs", "base.1")
    assert record["run"].startswith("base.1-")
    assert record["parameters"]["args"] == ["--name", "x y"]
    assert record["parameters"]["path"] == f"{tmp_path}/below/../train.py"
    origin = record["origin"]
    assert (origin["commit"], origin["is_clean"], origin["version"]) == (commit, True, __version__)
    assert origin["start_timeout"] == 60.0
    assert f"commit     {commit} (clean)\n" in demo("runs", "base.1").stdout

    again = demo("rerun", "base.1", code=3)
    assert (again.stdout, again.stderr) == ("['--name', 'x y'] below\n", "")
    latest = demo.last_run()
    assert {**latest, "timeout": 70.0}["parameters"] == record["parameters"]
    assert (latest["program"], latest["timeout"], latest["origin"]) == ("script", 70.0, origin)
    assert latest["run"].startswith("base.1-"), "it keeps its name"

    (tmp_path / "other.py").write_text("changed")
    assert demo("rerun", record["run"], code=3).stderr == (
        f"{record['run']} ran at commit {commit[:10]}; now it is commit {commit[:10]} with changes\n"
    )
    script.write_text("print('new')\n")
    later = git(tmp_path, "git commit -qam two && git rev-parse HEAD")
    changed = demo("rerun", record["run"], "--name", "base.2")
    assert changed.stdout == "new\n"
    assert changed.stderr.splitlines() == [
        f"train.py has changed since {record['run']}",
        f"{record['run']} ran at commit {commit[:10]}; now it is commit {later[:10]}",
    ]
    assert demo.last_run()["run"].startswith("base.2-")
    script.unlink()
    gone = demo("rerun", record["run"], code=2).stderr
    assert f"train.py: the script of {record['run']} no longer exists" in gone


def test_a_program_is_run_again_with_the_same_seed_but_not_with_a_pipe(demo: Sandbox) -> None:
    first = demo.json("run", "pi", "--samples", "1e4", "--devices", "/job:worker/task:1/device:CPU:0")
    again = demo.json("rerun", first["run"])
    values = [{name: result["result"][name] for name in ("inside", "seed")} for result in (first, again)]
    assert values[0] == values[1]
    assert list(again["devices"]) == ["/job:worker/task:1/device:CPU:0"]

    run = demo.execute(*demo.command, "run", "mean", "-", "-o", "json", input="1\n2\n")
    result = json.loads(run.stdout.splitlines()[-1])
    name = result["run"]
    assert result["result"]["mean"] == 1.5
    assert f"{name} read its input from a pipe or from standard input" in demo("rerun", name, code=2).stderr


@pytest.mark.slow
def test_a_program_is_run_again_with_its_file(demo: Sandbox) -> None:
    demo.spec("x,y\n1,2\n2,4\n3,6\n", "points.csv")
    trained = demo.json("run", "linear", "--data", "points.csv", "--steps", "5", "--seed", "1", "--sync")
    assert demo.json("rerun", trained["run"])["result"]["w"] == trained["result"]["w"]


@pytest.mark.slow
def test_a_name_is_as_good_as_an_id_while_it_is_unique(demo: Sandbox) -> None:
    words = ("run", "graph", "1", "--name", "try")
    (name,) = [demo.json(*words)["run"]]
    longer = demo.json("run", "graph", "2", "--name", "try-2")["run"]
    assert demo.json("attach", "try")["run"] == name, "not the one whose name is longer"
    assert demo.json("attach", "try-2")["run"] == longer
    second = demo.json(*words)["run"]
    error = demo("attach", "try", code=2).stderr
    assert f"several runs begin with 'try': {', '.join(sorted((name, second)))}" in error
    assert "'../x' cannot be the name of a run" in demo("run", "graph", "1", "--name", "../x", code=2).stderr
    assert "no run 'nothing'" in demo("runs", "nothing", code=2).stderr
