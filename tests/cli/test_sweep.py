"""`sweep`: what it would start, and wrong usage; tests/end_to_end/test_sweep.py has what it starts."""

from __future__ import annotations

import pytest

from tests.conftest import lines_of
from tests.project import Project

SPEC = "jobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"
RANDOM = "sweep --dry-run --random 3 %s trial.py {1..100} {a,b}"


@pytest.fixture(autouse=True)
def files(project: Project) -> None:
    project.bring_up(SPEC)
    project.file("trial.py")
    project.file("unused.csv", "lr\n1\n2\n")


def test_a_dry_run_shows_the_trials_and_starts_nothing(project: Project) -> None:
    shown = project.run("sweep trial.py --lr '{0.1..0.001 log 3}' --dry-run").stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["TRIAL", "lr"],
        ["0", "0.1"],
        ["1", "0.01"],
        ["2", "0.001"],
    ]
    (drawn,) = lines_of(project.run(RANDOM % "--seed 4 -o json").stdout)
    assert [each["trial"] for each in drawn["trials"]] == [0, 1, 2]
    assert lines_of(project.run(RANDOM % "--seed 4 -o json").stdout) == [drawn]
    noted = project.run(RANDOM % "")
    seed = noted.stderr.split()[-1]
    assert project.run(RANDOM % f"--seed {seed}").stdout == noted.stdout
    assert noted.code == 0
    assert project.agent.requests == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("trial.py --lr 0.1", "no argument has a parameter"),
        ("trial.py '--lr={1..}'", "'{1..}' in '--lr={1..}', character 6: this is not a range"),
        ("--best max: trial.py {1,2}", "--best max: names no metric"),
        ("trial.py {1,2} --best --dry-run", "--best --dry-run names no metric"),
        ("--from unused.csv trial.py {1,2}", "no argument uses a column of unused.csv"),
        ("trial.py {1,2} --at-a-time", "'--at-a-time' requires an argument"),
    ],
)
def test_wrong_usage(project: Project, words: str, error: str) -> None:
    outcome = project.run(f"sweep {words}")
    assert (outcome.code, error in outcome.stderr) == (2, True), outcome.stderr
