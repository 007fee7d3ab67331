"""Environment variables: errors name the option's, a note those that no option reads; values of specs stay secret."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

import tfcluster
from tests.project import Outcome, Project
from tfcluster.cli.main import cli
from tfcluster.cli.variables import describe_unread

# What an error about a value of the environment ends with, by the variable and the command.
BLAMED = {
    ("TFCLUSTER_RUN_SAMPLES=x", "run pi"): "(1e7 and 10_000_000 are); --samples is set by TFCLUSTER_RUN_SAMPLES",
    ("TFCLUSTER_STATUS_OUTPUT=xml", "status"): "; --output is set by TFCLUSTER_STATUS_OUTPUT",
    ("TFCLUSTER_LOGS_FOLLOW=1", "logs --until 1m"): "--follow; --follow is set by TFCLUSTER_LOGS_FOLLOW",
    ("TFCLUSTER_DOWN_YES=maybe", "down"): "; --yes is set by TFCLUSTER_DOWN_YES",
    ("TFCLUSTER_DOWN_YES=1", "down --timeout x"): "'--timeout': 'x' is not a valid number.",
    ("TFCLUSTER_RUN_SAMPLES=5", "run pi --samples x"): "(1e7 and 10_000_000 are)",
    # The options of scripts belong to these commands too.
    ("TFCLUSTER_LAUNCH_START_TIMEOUT=x", "launch -m one"): "; --start-timeout is set by TFCLUSTER_LAUNCH_START_TIMEOUT",
    ("TFCLUSTER_SWEEP_PYTHON=no/python", "sweep -m one"): "; --python is set by TFCLUSTER_SWEEP_PYTHON",
}


@pytest.mark.parametrize(("variable", "line"), BLAMED)
def test_an_error_about_a_value_of_the_environment_names_the_variable(
    project: Project, variable: str, line: str
) -> None:
    outcome = project.run(line, env=dict([variable.split("=")]))
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.endswith(f"{BLAMED[variable, line]}\n")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"TFCLUSTER_CLUSTER": "nosuch"}, "TFCLUSTER_CLUSTER"),
        ({"TFCLUSTER_LAUNCH_CLUSTER": "nosuch"}, "TFCLUSTER_LAUNCH_CLUSTER"),
        ({"TFCLUSTER_CLUSTER": "nosuch", "TFCLUSTER_LAUNCH_CLUSTER": "other"}, "TFCLUSTER_CLUSTER"),
        ({"TFCLUSTER_CLUSTER": "", "TFCLUSTER_LAUNCH_CLUSTER": "nosuch"}, "TFCLUSTER_LAUNCH_CLUSTER"),
    ],
)
def test_an_error_about_the_cluster_names_the_variable_that_chose_it(
    project: Project, variables: dict[str, str], named: str
) -> None:
    project.file("one.py")
    outcome = project.run("launch one.py", env=variables)
    assert outcome.code == 3
    assert outcome.stderr.endswith(f" {named} is set to 'nosuch'.\n")


def test_the_note_is_on_standard_error_and_changes_nothing_else(project: Project) -> None:
    note = "note: no option of `tfcluster ls` reads TFCLUSTER_LS_OUTPT (did you mean TFCLUSTER_LS_OUTPUT?)\n"
    assert project.run("ls -o json", env={"TFCLUSTER_LS_OUTPT": ""}) == Outcome(0, "[]\n", "")
    assert project.run("ls -o json", env={"TFCLUSTER_LS_OUTPT": "text"}) == Outcome(0, "[]\n", note)


def note_of(command: str) -> str:
    """What the command says of variables that it does not read."""
    context = click.Context(cli, info_name="tfcluster", auto_envvar_prefix="TFCLUSTER")
    context.invoked_subcommand = command
    return describe_unread(context)


@pytest.mark.parametrize(
    ("variables", "command", "unread"),
    [
        ("TFCLUSTER_STATUS_OUTPUT TFCLUSTER_CLUSTER", "status", ""),
        (
            "TFCLUSTER_STATUS_OUTPT TFCLUSTER_STATUS_OUTPUT",
            "status",
            "TFCLUSTER_STATUS_OUTPT (did you mean TFCLUSTER_STATUS_OUTPUT?)",
        ),
        (
            "TFCLUSTER_STATUS_ZZZ TFCLUSTER_STATUS_AAA",
            "status",
            "TFCLUSTER_STATUS_AAA, TFCLUSTER_STATUS_ZZZ",
        ),
        ("TFCLUSTER_STATUS_ZZZ TFCLUSTER_RUN_ZZZ TFCLUSTER_RUN", "runs", ""),
        # The programs share their variables: each reads its own.
        ("TFCLUSTER_RUN_SAMPLES TFCLUSTER_RUN_MODE TFCLUSTER_RUN_TIMEOUT TFCLUSTER_RUN_PYTHON", "run", ""),
        ("TFCLUSTER_RUN_SAMPLE", "run", "TFCLUSTER_RUN_SAMPLE (did you mean TFCLUSTER_RUN_SAMPLES?)"),
        ("TFCLUSTER_LAUNCH_PYTHON TFCLUSTER_LAUNCH_START_TIMEOUT TFCLUSTER_LAUNCH_EACH", "launch", ""),
        ("TFCLUSTER_SWEEP_FROM TFCLUSTER_SWEEP_PYTHON", "sweep", ""),
    ],
)
def test_variables_that_no_option_reads_are_named_once(
    monkeypatch: pytest.MonkeyPatch, variables: str, command: str, unread: str
) -> None:
    for name in variables.split():
        monkeypatch.setenv(name, "secret")
    assert note_of(command) == (f"note: no option of `tfcluster {command}` reads {unread}" if unread else "")


def test_no_command_has_a_note_on_a_variable_of_tfcluster_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those that a script has, which may call any command."""
    package = Path(tfcluster.__file__).parent
    source = "".join(path.read_text() for path in package.rglob("*.py"))
    names = {*re.findall('"(TFCLUSTER_[A-Z_]+)"', source)}
    assert {"TFCLUSTER_RUN", "TFCLUSTER_DEVICES", "TFCLUSTER_AGENT_MARK", "TFCLUSTER_RUN_MODE"} <= names
    for name in names:
        monkeypatch.setenv(name, "1")
    assert [note for command in cli.list_commands(click.Context(cli)) if (note := note_of(command))] == []


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
