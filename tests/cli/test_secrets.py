"""No command shows or keeps the values of environment variables, which may be secret; only `up` requires them."""

from __future__ import annotations

import json

from tests.project import Outcome, Project

SPEC = """
name: quiet
jobs:
  ps: {tasks: 1}
  worker: {tasks: 1, max: 2, env: {TOKEN: {secret: "${TOKEN}"}, PLAIN: "<${PLAIN}>"}}
"""
OLD, NEW = {"TOKEN": "xyzzy-1", "PLAIN": "plugh"}, {"TOKEN": "xyzzy-2", "PLAIN": "plugh"}
UP_AGAIN = ("up --dry-run", "up --dry-run -o json", "up", "up -o json", "scale worker=2 --yes")
#: What is typed after it, without the variables.
LATER = ("status", "status -o json", "restart --yes", "events", "runs -o json", "metrics", "ls", "down")


def test_no_command_shows_the_value_of_a_variable_or_keeps_it(project: Project) -> None:
    project.file("cluster.yaml", SPEC)
    outcomes = [project.run(line, env=OLD) for line in ("validate -o json", "doctor -o json", "up -o json")]
    assert json.loads(outcomes[0].stdout)["tasks"][1]["env"] == {"TOKEN": "***", "PLAIN": "***"}
    outcomes += [project.run(line, env=NEW) for line in UP_AGAIN]
    assert all("env TOKEN changed" in outcome.stdout for outcome in outcomes[3:6])
    outcomes += [project.run(line) for line in LATER]
    assert [outcome.code for outcome in outcomes] == [0] * len(outcomes)
    for outcome in outcomes:
        assert not {word for word in ("xyzzy", "plugh") if word in outcome.stdout + outcome.stderr}
    files = [path for path in project.folder.parent.rglob("*") if path.is_file()]
    assert not [path for path in files if b"xyzzy" in path.read_bytes()]


def test_only_up_requires_the_variables(project: Project) -> None:
    project.file("cluster.yaml", SPEC)
    for line in ("status", "down", "runs"):
        assert project.run(line).code == 3
    assert project.run("up", env={"PLAIN": "x"}) == Outcome(
        2,
        "",
        "error: cluster.yaml:5:52: jobs.worker.env.TOKEN.secret: the variable TOKEN is not set; set it, or write "
        "${TOKEN:-DEFAULT}; $${TOKEN} is for a shell\n",
    )
