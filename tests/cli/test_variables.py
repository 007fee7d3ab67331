"""Variables of options: an error names the one that it is about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfcluster.cli.main import cli
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
