"""Wrong usage: one clear message and exit code 2, or 3 without a cluster, before anything is started or asked."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from click.testing import CliRunner

from tfcluster.cli.main import cli
from tfcluster.errors import ClusterError
from tfcluster.transport import local

WRONG = {
    "up": "there is no cluster.yaml here, and no spec was given\nhint: `tfcluster init`",
    "up nowhere.yaml": "nowhere.yaml: no such file or directory",
    "up .": ".: is a directory",
    "up --cluster-spec 'worker|nowhere'": "the task's address is not on this machine: 'nowhere'",
    "up --timeout -1": "--timeout",
    "restart --grace nan": "nan is not a finite number",
    "scale worker": "expected JOB=N, got 'worker'\nhint: For example, `tfcluster scale worker=4`",
    "scale worker=1.5": "expected JOB=N, got 'worker=1.5'",
    "scale worker=1 worker=2": "two numbers of tasks, 1 and 2",
    "stauts": "Did you mean 'status'?",
    "status -o xml": "'xml' is not one of 'text', 'json'",
    "down --all -c x": "not both",
    "logs -c ../../etc": "'../../etc' cannot be the name of a cluster\nhint: ",
    "logs --since yesterday": "'yesterday' is not a time (10m, ",
    "logs --since 1m --until 1h": "exchange them",
    "logs --all --level info": "--all cannot be combined with --level",
    "logs --agent -- worker:0": "--agent cannot be combined with TASK",
    "events -f --until 1h": "--until cannot be combined with --follow",
    "exec": "Missing argument 'COMMAND...'",
    "launch none.py": "none.py",
    "launch --workers 2 -c demo one.py": "Give only one of --spec, --workers and --cluster.",
    "launch --workers 2 --each ps one.py": "the cluster has no job 'ps'",
    "launch --workers 2 --detach one.py": "a run that is detached requires a cluster that stays up",
    "launch --workrs 2 one.py": "--workers",
    "launch --workers 2 ./train.sh": "./train.sh is a script of /bin/sh, not a Python script\nhint: "
    "`tfcluster exec -- ./train.sh` runs any program with the cluster's environment.",
    "launch --workers 2 elf": "elf is a compiled program (ELF), not a Python script\nhint: `tfcluster exec -- ./elf`",
    "run ./train.sh": "./train.sh is a script of /bin/sh",
    "run ./wheel.whl": "./wheel.whl is an archive without __main__.py\nhint: `python -m zipapp`",
    "run empty": "A script is named by its path: cli run ./empty",
    "run ./empty": "'./empty': is a folder without __main__.py",
    "run --detatch one.py": "--detach",
    "run --detatch -m one": "--detach",
    "run pie": "Did you mean 'pi'?",
    "run pi --timeout nan": "nan is not a finite number",
    "run pi --timeout 1e10": "1e10 is more than 1e+09",
    "run graph 'x = 5; y + 1'": (
        "error: expression:1:8: y has no value\n  x = 5; y + 1\n         ^\nhint: Names with a value here: x."
    ),
    "run graph --device y2": "'y2' is not NAME=DEVICE",
    "run graph --x nan": "nan is not a finite number",
    "run expfit --plot curve.gif": "does not end in .png",
    "run expfit --compare --mode single": "leave out --mode",
    "run expfit --detach --plot curve.png": "--plot cannot be combined with --detach",
    "run expfit --lr nan": "'--lr'",
    "run linear --data missing.csv": "missing.csv",
    "run linear --steps 10 --epochs 2": "--steps and --epochs",
    "run linear --steps 0": "'--steps'",
    "run linear --lr 0": "'--lr'",
    "run linear --lr nan": "'--lr'",
    "run linear --optimizer newton": "'--optimizer'",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with scripts, where no cluster is known; the agents that `up` has started early end with a test."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    Path("one.py").touch()
    Path("train.sh").write_text("#!/bin/sh\necho $HOME\n")
    Path("elf").write_bytes(b"\x7fELF\2\1\1\0")
    Path("empty").mkdir()
    with ZipFile("wheel.whl", "w") as archive:
        archive.writestr("train/__main__.py", "")
    yield
    local.kill_prestarted_agent()


def refuse(command: str) -> tuple[int, str]:
    """Return the exit code of a command and what it says."""
    result = CliRunner().invoke(cli, shlex.split(command))
    error = result.exception
    if isinstance(error, ClusterError):
        return int(error.exit_code), f"error: {error.message}\nhint: {error.hint}"
    assert isinstance(error, SystemExit), error
    return result.exit_code, result.output


@pytest.mark.parametrize("command", WRONG)
def test_wrong_usage(command: str) -> None:
    code, message = refuse(command)
    assert WRONG[command] in message
    assert code == 2


NO_CLUSTER = {
    **dict.fromkeys(
        ["run graph", "run expfit --plot curve.png", "run linear", "logs -c ''"],
        "no cluster is running, and there is no cluster.yaml here\nhint: Start one",
    ),
    "down --all": "no cluster is running",
    "down -c nobody": "'nobody'",
    "logs -c never": "'never'",
    "scale worker=1 -c nobody": "is not running",
    "exec -c other -- true": "cluster 'other' is not running",
}


@pytest.mark.parametrize("command", NO_CLUSTER)
def test_no_cluster(command: str) -> None:
    code, message = refuse(command)
    assert NO_CLUSTER[command] in message
    assert code == 3
