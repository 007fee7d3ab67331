"""A program of another package, as docs/packages.md shows one, is run like those that tfcluster brings."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pexpect
import pytest

from tests.conftest import COMMAND, EXAMPLE, ROOT, Sandbox

FILE = re.compile(r"^```\w+\n# ([\w/.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = ("run", "dice", "--rounds", "50", "--seed", "3")


def install(folder: Path) -> dict[str, str]:
    """Install the sample package of docs/packages.md as pip does; return the variables with which Python finds it."""
    files = dict(FILE.findall((ROOT / "docs" / "packages.md").read_text()))
    project = files["pyproject.toml"]
    name, version = re.search(r'name = "(.+)"\nversion = "(.+)"', project).groups()  # type: ignore[union-attr]
    entry, module = re.search(r'\[project.entry-points."tfcluster.programs"\]\n(\w+) = "(\w+)"', project).groups()  # type: ignore[union-attr]
    for path, text in files.items():
        if path.startswith(f"{module}/"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    metadata = folder / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[tfcluster.programs]\n{entry} = {module}\n")
    return {"PYTHONPATH": f"{folder}:{ROOT / 'tests' / 'changed'}:{ROOT}"}


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return install(tmp_path_factory.mktemp("site"))


def test_it_runs_with_its_options_summary_and_json_output(sandbox: Sandbox, installed: dict[str, str]) -> None:
    sandbox("up", EXAMPLE, env=installed)
    events = sandbox.json_lines(*RUN, env=installed)
    result = events[-1]
    assert (result["event"], result["program"], result["state"]) == ("result", "dice", "succeeded")
    assert sum(result["result"]["counts"]) == 5000
    assert sum(done["shards"] for done in result["devices"].values()) == 50
    one = sandbox.json(*RUN, "--devices", "/job:worker/task:1", env=installed)
    assert one["result"] == result["result"], "the same seed gives the same result"
    assert list(one["devices"]) == ["/job:worker/task:1/device:CPU:0"]

    child = sandbox.at_terminal(*COMMAND, *RUN, env=installed)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert f"6: {result['result']['counts'][5]} times" in str(child.before)
    assert "rounds=50 seed=3" in sandbox("runs", env=installed).stdout
    # The result is shown where the package is not installed, too.
    shown = sandbox("attach", result["run"]).stdout
    assert f"counts = {result['result']['counts']}" in shown
    assert "seed = 3" in shown


def test_its_options_are_in_the_help_and_in_completions(demo: Sandbox, installed: dict[str, str]) -> None:
    assert "dice    Rolls dice and counts the points." in demo("run", "--help", env=installed).stdout
    shown = demo("run", "dice", "--help", env=installed).stdout
    assert "Roll 100 dice in each round" in shown
    assert shown.index("--rounds") < shown.index("--seed") < shown.index("--help")
    assert "is not in the range x>=1" in demo("run", "dice", "--rounds", "0", env=installed, code=2).stderr
    assert "Did you mean 'dice'?" in demo("run", "dicee", env=installed, code=2).stderr
    patient = demo.with_settings({"COMPLETION_SECONDS": 60})
    for words, completed in (("tfcluster run d", "plain,dice"), ("tfcluster run dice --ro", "plain,--rounds")):
        completion = {**installed, **patient, "_TFCLUSTER_COMPLETE": "bash_complete", "COMP_LINE": words, "BREAKS": ""}
        assert completed in demo(env=completion).stdout.splitlines()


@pytest.mark.slow
def test_it_must_be_installed_on_the_host_of_the_head_task(demo: Sandbox, installed: dict[str, str]) -> None:
    error = demo(*RUN, env=installed, code=1).stderr
    assert "error: the program 'dice' is not installed on the host of the head task (localhost:" in error
    assert f"hint: Programs run there; install the package: {sys.executable} -m pip install tfcluster-dice" in error
