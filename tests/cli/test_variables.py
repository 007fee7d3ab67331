"""Variables of options: an error names the one that it is about, and a note names those that no option reads."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import tfcluster
from tfcluster.cli.main import cli
from tfcluster.cli.variables import describe_unread
from tfcluster.errors import ClusterError


@pytest.mark.parametrize(
    ("variables", "command", "words"),
    [
        (
            {"TFCLUSTER_RUN_SAMPLES": "x"},
            "run pi",
            "(1e7 and 10_000_000 are); --samples is set by TFCLUSTER_RUN_SAMPLES",
        ),
        ({"TFCLUSTER_STATUS_OUTPUT": "xml"}, "status", "; --output is set by TFCLUSTER_STATUS_OUTPUT"),
        ({"TFCLUSTER_LOGS_FOLLOW": "1"}, "logs --until 1m", "--follow; --follow is set by TFCLUSTER_LOGS_FOLLOW"),
        ({"TFCLUSTER_DOWN_YES": "maybe"}, "down", "; --yes is set by TFCLUSTER_DOWN_YES"),
        ({"TFCLUSTER_DOWN_YES": "1"}, "down --timeout x", "'--timeout': 'x' is not a valid number."),
        ({"TFCLUSTER_RUN_SAMPLES": "5"}, "run pi --samples x", "(1e7 and 10_000_000 are)"),
        # The options of scripts belong to these commands too.
        (
            {"TFCLUSTER_LAUNCH_START_TIMEOUT": "x"},
            "launch -m one",
            "; --start-timeout is set by TFCLUSTER_LAUNCH_START_TIMEOUT",
        ),
        ({"TFCLUSTER_SWEEP_PYTHON": "no/python"}, "sweep -m one", "; --python is set by TFCLUSTER_SWEEP_PYTHON"),
    ],
)
def test_an_error_about_a_value_of_the_environment_names_the_variable(
    variables: dict[str, str], command: str, words: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tfcluster", *command.split()],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.endswith(f"{words}\n")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder where no cluster is known."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    Path("one.py").touch()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"TFCLUSTER_CLUSTER": "nosuch"}, "TFCLUSTER_CLUSTER"),
        ({"TFCLUSTER_LAUNCH_CLUSTER": "nosuch"}, "TFCLUSTER_LAUNCH_CLUSTER"),
        ({"TFCLUSTER_CLUSTER": "nosuch", "TFCLUSTER_LAUNCH_CLUSTER": "other"}, "TFCLUSTER_CLUSTER"),
        ({"TFCLUSTER_CLUSTER": "", "TFCLUSTER_LAUNCH_CLUSTER": "nosuch"}, "TFCLUSTER_LAUNCH_CLUSTER"),
    ],
)
def test_an_error_about_the_cluster_names_the_variable_that_chose_it(variables: dict[str, str], named: str) -> None:
    error = CliRunner().invoke(cli, ["launch", "one.py"], env=variables).exception
    assert isinstance(error, ClusterError)
    assert error.hint.endswith(f" {named} is set to 'nosuch'.")


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


@pytest.mark.usefixtures("nowhere")
def test_the_note_is_on_standard_error_and_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def outputs(value: str) -> tuple[str, str, object]:
        monkeypatch.setenv("TFCLUSTER_LS_OUTPT", value)
        with pytest.raises(SystemExit) as end:
            cli.main(["ls", "-o", "json"])
        return *capsys.readouterr(), end.value.code

    assert outputs("") == ("[]\n", "", 0)
    note = "note: no option of `tfcluster ls` reads TFCLUSTER_LS_OUTPT (did you mean TFCLUSTER_LS_OUTPUT?)\n"
    assert outputs("text") == ("[]\n", note, 0)


def test_no_command_has_a_note_on_a_variable_of_tfcluster_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those that a script has, which may call any command."""
    package = Path(tfcluster.__file__).parent
    names = {
        node.value
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch("TFCLUSTER_[A-Z_]+", node.value)
    }
    assert {"TFCLUSTER_RUN", "TFCLUSTER_DEVICES", "TFCLUSTER_AGENT_MARK", "TFCLUSTER_RUN_MODE"} <= names
    for name in names:
        monkeypatch.setenv(name, "1")
    assert [note for command in cli.list_commands(click.Context(cli)) if (note := note_of(command))] == []
