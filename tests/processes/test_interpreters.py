"""Which Python a script gets, and what its user is told if a package is missing there."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.environments import make_environment
from tfcluster.agent.handlers.runs import check_python
from tfcluster.core.caller import Caller
from tfcluster.core.runs import RunOptions
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.processes.runs.import_advice import advise_on_import
from tfcluster.processes.runs.interpreters import choose
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.protocol.api.runs import RunRequest

VERSION = version("tensorflow")


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    """The run of a script whose command is on this machine."""
    options = RunOptions("script", {"path": str(tmp_path / "train.py"), "cwd": str(tmp_path)})
    plan = RunPlan("train-1", "demo", options, tmp_path, {}, "localhost:1", [], [])
    return replace(plan, caller=Caller({}, 0o022, None), host="alpha")


def member(rank: int, attempt: int, **more: str) -> dict[str, str]:
    return {"TFCLUSTER_RANK": str(rank), "TFCLUSTER_ATTEMPT": str(attempt), **more}


def test_the_active_environment_is_that_of_the_command(plan: RunPlan, tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "own", tensorflow="own")
    active = {**os.environ, "VIRTUAL_ENV": "own"}  # relative to the folder of the command
    python, note = choose(plan, active)
    assert python is not None
    assert python.prefix == str(folder)
    assert note.startswith(f"the script runs with the Python of the active environment, {folder}/bin/python")
    assert choose(replace(plan, caller=None), active) == (None, ""), "the agent's on another host is not the user's"


@pytest.mark.parametrize(
    ("tensorflow", "reason"),
    [
        ("1.0.0", f"has TensorFlow 1.0.0, and the cluster has {VERSION}"),
        (None, f"has no TensorFlow, and the cluster has {VERSION}"),
        ("no python", "cannot be used ({}/bin/python: No such file or directory)"),
    ],
)
def test_an_environment_that_does_not_fit(plan: RunPlan, tmp_path: Path, tensorflow: str | None, reason: str) -> None:
    folder = tmp_path / "environment"
    if tensorflow == "no python":
        folder.mkdir()
    else:
        make_environment(folder, tensorflow=tensorflow)
    active = {**os.environ, "CONDA_PREFIX": str(folder)}
    assert choose(plan, active) == (
        None,
        f"the active environment, {folder}, {reason.format(folder)}: the script runs with the cluster's Python, "
        f"as with `--python {sys.executable}`",
    )
    assert choose(plan, {**active, "CONDA_DEFAULT_ENV": "base"}) == (None, ""), "it is active in every shell"


def test_the_clusters_own_environment_is_no_other(plan: RunPlan, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sys.prefix)
    for folder in (sys.prefix, tmp_path / "link"):
        assert choose(plan, {**os.environ, "VIRTUAL_ENV": str(folder)}) == (None, "")


def test_a_python_that_the_user_names(plan: RunPlan, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "other", tensorflow="1.0.0") / "bin" / "python"
    with pytest.raises(
        ClusterError, match=f"has TensorFlow 1.0.0, and the cluster has {re.escape(VERSION)}\n"
    ) as error:
        choose(plan.with_parameters({**plan.options.parameters, "python": str(python)}), os.environ)
    assert error.value.exit_code is ExitCode.USAGE
    old = tmp_path / "old"
    old.write_text("""#!/bin/sh\necho 'tfcluster-describes ["/opt/old", "3.10.13", "cpython-310", []]'\n""")
    old.chmod(0o755)
    with pytest.raises(ClusterError, match=r"has Python 3\.10\.13, and scripts of a cluster require 3\.11 or newer\n"):
        choose(plan.with_parameters({**plan.options.parameters, "python": str(old)}), os.environ)


def test_a_python_of_this_machine_is_refused_for_other_hosts() -> None:
    request = RunRequest(RunOptions("script", {"python": "/opt/mine"}), False, True)
    with pytest.raises(ClusterError, match=r"--python /opt/mine is a Python of your machine, .* on alpha, beta\n"):
        check_python(request, ["alpha", "beta"])
    check_python(request, [])


def test_members_and_trials_have_one_note_and_on_several_hosts_the_pythons_of_these(
    plan: RunPlan, tmp_path: Path
) -> None:
    active = {**os.environ, "VIRTUAL_ENV": str(make_environment(tmp_path / "none"))}
    trials = [member(0, 0, TFCLUSTER_TRIAL="0"), member(0, 0, TFCLUSTER_TRIAL="1")]
    places = [member(0, 0), member(1, 0), member(0, 1), *trials]
    notes = [choose(replace(plan, member=place), active)[1] for place in places]
    assert [bool(note) for note in notes] == [True, False, False, True, False]
    assert choose(replace(plan, member=places[0], spans_hosts=True), active) == (None, "")


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_only_a_package_that_is_missing_is_advised_on(plan: RunPlan, tmp_path: Path) -> None:
    others = [missing("json.nothing"), ModuleNotFoundError("of a script"), ImportError("x", name="y"), ValueError()]
    others += [missing("sys.nothing"), ModuleNotFoundError("of a script", name=5)]  # type: ignore[arg-type]
    assert [advise_on_import(plan, tmp_path, error) for error in others] == [""] * 6
    assert advise_on_import(plan, tmp_path, missing("pandaz.core")) == (
        f"{sys.executable} does not have pandaz. Install it with `{sys.executable} -m pip install PACKAGE`, or choose "
        "another Python with `--python PATH`."
    )
    (tmp_path / "pyproject.toml").touch()
    assert f"`{sys.executable} -m pip install ./`, or" in advise_on_import(plan, tmp_path, missing("pandaz"))
    below = replace(plan, options=replace(plan.options, parameters={"cwd": str(tmp_path.parent)}))
    (tmp_path / "requirements.txt").touch()
    assert f"-m pip install -r {tmp_path.name}/requirements.txt`" in advise_on_import(
        below, tmp_path, missing("pandaz")
    )
    launched = replace(plan, member=member(0, 0), spans_hosts=True)
    assert "--python" not in advise_on_import(launched, tmp_path, missing("pandaz"))


def test_on_another_host_the_spec_installs_packages(plan: RunPlan, tmp_path: Path) -> None:
    there = replace(plan, caller=None)
    line = (
        f'add `setup: ["{sys.executable} -m pip install PACKAGE"]` to the host in the spec, and type `tfcluster up`. '
    )
    advice = advise_on_import(there, tmp_path, missing("pandaz"))
    assert advice.startswith(f"{sys.executable} on host alpha does not have pandaz. To install packages there, {line}")
    (tmp_path / "pyproject.toml").touch()
    listed = f"To install packages there, such as those in pyproject.toml beside the script, {line}"
    assert listed in advise_on_import(there, tmp_path, missing("pandaz"))
