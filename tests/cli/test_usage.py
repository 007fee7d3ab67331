"""Wrong usage: one clear message and exit code 2, or 3 without a cluster, before anything starts; types of options."""

from __future__ import annotations

import time
from pathlib import Path
from zipfile import ZipFile

import click
import pytest

from tests.project import Project
from tfcluster.cli.options import OutputFilePath, Timestamp

WRONG = {
    "up": "there is no cluster.yaml here, and no spec was given\nhint: `tfcluster init`",
    "up nowhere.yaml": "error: nowhere.yaml: no such file or directory\nhint: ",
    "up .": ".: is a directory",
    "up --cluster-spec 'worker|nowhere'": "the task's address is not on this machine: 'nowhere'",
    "up --timeout -1": "--timeout",
    "restart --grace nan": "nan is not a finite number",
    "scale worker": "expected JOB=N, got 'worker'\nhint: For example, `tfcluster scale worker=4`",
    "scale worker=1.5": "expected JOB=N, got 'worker=1.5'",
    "scale worker=1 worker=2": "two numbers of tasks, 1 and 2",
    "stauts": "No such command 'stauts'. Did you mean 'status'?\n",
    "start": "No such command 'start'. `tfcluster up` starts",
    "stop": "`tfcluster down` stops",
    "rm": "`tfcluster down` stops",
    "kill": "tfcluster cancel RUN",
    "ssh": "tfcluster exec -- COMMAND",
    "stats": "tfcluster top",
    "list": "tfcluster runs",
    "help": "tfcluster --help",
    "version": "tfcluster --version",
    "linear": "`tfcluster run linear` runs it.\n",
    "src/train.py": "`tfcluster run src/train.py` runs it.\n",
    "xyzzy": "No such command 'xyzzy'.\n",
    "status -o xml": "'xml' is not one of 'text', 'json'",
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
    "run empty": "A script is named by its path: tfcluster run ./empty",
    "run ./empty": "'./empty': is a folder without __main__.py",
    "run --detatch one.py": "--detach",
    "run --detatch -m one": "--detach",
    "run pie": "Did you mean 'pi'?",
    "run pi --timeout nan": "nan is not a finite number",
    "run pi --timeout 1e10": "1e10 is more than 1e+09",
    **{
        f"run pi --samples={number}": "'--samples'"
        for number in ("0", "-5", "1.5", "1e99", "nan", "many", "1e999999999")
    },
    "run train --epochs 3": "No such command 'train'. A script is named by its path: tfcluster run ./train\n",
    "run nothing": "nothing",
    "run --samples 3 pi": "A program's options come after its name: tfcluster run pi",
    "run --more 3 mean": "A program's options come after its name: tfcluster run mean",
    "run --name pi none.py": "'none.py': no such file",
    "run --seed": "Option '--seed' requires an argument",
    "run graph 1+": "expression:1:3:",
    "run graph --x 5 y=1": "x is given a value, but the expression has no x",
    "run graph 'x = 5; y + 1'": (
        "error: expression:1:8: y has no value\n  x = 5; y + 1\n         ^\nhint: Names with a value here: x."
    ),
    "run graph --device y2": "'y2' is not NAME=DEVICE",
    "run graph --x nan": "nan is not a finite number",
    "run expfit --plot curve.gif": "does not end in .png",
    "run expfit --compare --mode single": "--compare trains in every mode; leave out --mode.",
    "run expfit --mode single --compare": "--compare trains in every mode; leave out --mode.",
    "run expfit --detach --plot curve.png": "cannot be combined with --detach: this command draws the run's losses",
    "run expfit --lr nan": "'--lr'",
    "run linear --data missing.csv": "missing.csv",
    "run linear --steps 10 --epochs 2": "--steps and --epochs",
    "run linear --steps 0": "'--steps'",
    "run linear --lr 0": "'--lr'",
    "run linear --lr nan": "'--lr'",
    "run linear --optimizer newton": "'--optimizer'",
}


@pytest.fixture
def folder(project: Project) -> Project:
    """A folder with scripts, where no cluster is known."""
    for name in ("one.py", "empty/readme", "train"):
        project.file(name)
    project.file("train.sh", "#!/bin/sh\necho $HOME\n")
    (project.folder / "elf").write_bytes(b"\x7fELF\2\1\1\0")
    with ZipFile(project.folder / "wheel.whl", "w") as archive:
        archive.writestr("train/__main__.py", "")
    return project


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage(folder: Project, line: str) -> None:
    outcome = folder.run(line)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert WRONG[line] in outcome.stderr
    assert "TFCLUSTER_" not in outcome.stderr, "a variable that is not set is not blamed"
    assert folder.agent.requests == []


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


@pytest.mark.parametrize("line", NO_CLUSTER)
def test_no_cluster(folder: Project, line: str) -> None:
    outcome = folder.run(line)
    assert (outcome.code, outcome.stdout) == (3, "")
    assert NO_CLUSTER[line] in outcome.stderr


# What is wrong only for a cluster that runs, with a ps and two workers.
OF_A_CLUSTER = {
    "exec --on worker -- true": "Name one: worker:0, worker:1.",
    "exec --on nobody -- true": "no task or host 'nobody'",
    "env nobody": "no task or host 'nobody'",
    "restart nobody": "no task 'nobody'\nhint: The tasks are ps:0, worker:0, worker:1.",
    "restart ps:0": "cluster 'demo' would lose the variables of ps:0: nothing was restarted\n"
    "hint: Add --yes to restart anyway.",
    "logs --agent beta": "demo has no host 'beta'\nhint: The hosts are localhost.",
    "logs -g (": "'(' is not a regular expression: missing ), unterminated subpattern at position 0\nhint: ",
    "profile nobody --logdir logs": "no task 'nobody'",
    "profile": "--logdir",
    "profile --logdir one.py": "one.py",
    "wait --ready nobody": "no task 'nobody'",
}


@pytest.mark.parametrize("line", OF_A_CLUSTER)
def test_what_a_cluster_does_not_have(folder: Project, line: str) -> None:
    folder.bring_up("name: demo\njobs: {ps: {tasks: 1}, worker: {tasks: 2}}\n")
    outcome = folder.run(line.replace("(", "'('"))
    assert (outcome.code, outcome.stdout) == (2, "")
    assert OF_A_CLUSTER[line] in outcome.stderr
    assert not any(request.changes for _, request in folder.agent.requests)


NOW = 1795291200.0


def test_a_duration_is_relative_to_now_and_an_iso_time_has_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    durations = {"10m": 600, "1h30m": 5400, "2d": 172_800, "1d2h3m4.5s": 93_784.5, "0s": 0, "90s": 90}
    for text, ago in durations.items():
        assert Timestamp().convert(text, None, None) == NOW - ago
    for text in ("2026-11-21T20:00:00Z", "2026-11-21T21:00+01:00", "2026-11-21 20:00:00.000z"):
        assert Timestamp().convert(text, None, None) == NOW


def test_an_iso_time_without_a_zone_is_in_the_local_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    try:
        assert Timestamp().convert("2026-11-21T22:00", None, None) == NOW
        assert Timestamp().convert("2026-11-21", None, None) == NOW - 22 * 3600
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "10", "m", "30m1h", "-5m", "yesterday", "2026-13-01", "5 m", "0001-01-01", "9" * 400 + "d"]
)
def test_an_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time \\(10m, 1h30m, 2d, "):
        Timestamp().convert(text, None, None)


FILES = OutputFilePath((".png", ".svg"))


def test_an_image_file_has_a_known_ending_and_can_be_written(tmp_path: Path) -> None:
    for name in ("a.png", "A.SVG"):
        assert FILES.convert(str(tmp_path / name), None, None) == tmp_path / name
    (tmp_path / "folder.png").mkdir()
    for name, words in {
        "a.gif": "the name does not end in .png, .svg",
        "a": "the name does not end in .png, .svg",
        "no/a.png": "there is no folder",
        "folder.png": "permission denied",
    }.items():
        with pytest.raises(click.BadParameter, match=words):
            FILES.convert(str(tmp_path / name), None, None)
