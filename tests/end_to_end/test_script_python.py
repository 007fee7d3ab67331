"""Which Python runs a script: that of the active environment, the cluster's, or the one that `--python` names."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tests.environments import make_environment

VERSION = version("tensorflow")
# Its environment, and whether it runs in a fork of the warm interpreter.
SHOW = """
import sys, tfcluster
tfcluster.metric("loss", 0.5, 1)
print(sys.prefix, "warm" if "tfcluster.processes.runs.fork_server" in sys.modules else "fresh")
"""
OWN = f"{sys.prefix} warm\n"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of four environments, by what they have of TensorFlow; the last one has no Python either."""
    folder = tmp_path_factory.mktemp("environments")
    empty = folder / "empty"
    empty.mkdir()
    return {
        "own": make_environment(folder / "own", tensorflow="own"),
        "other": make_environment(folder / "other", tensorflow="1.0.0"),
        "none": make_environment(folder / "none"),
        "empty": empty,
    }


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "show.py"
    path.write_text(SHOW)
    return path


def notes_of(text: str) -> list[str]:
    return [line.partition("note: ")[2] for line in text.splitlines() if "note: " in line]


def test_a_script_runs_with_the_python_of_the_active_environment(
    demo: Sandbox, environments: dict[str, Path], script: Path
) -> None:
    folder = environments["own"]
    script.write_text(f"{SHOW}import only_here\n")
    result = demo("run", script, env={"VIRTUAL_ENV": str(folder), "CONDA_PREFIX": str(environments["none"])})
    assert result.stdout == f"{folder} fresh\n"
    assert result.stderr == (
        f"note: the script runs with the Python of the active environment, {folder}/bin/python, in a fresh "
        f"interpreter, which takes about two seconds more; `--python {sys.executable}` chooses the cluster's\n"
    )
    assert demo.json("runs")[-1]["result"]["metrics"] == {"loss": 0.5}
    conda = {"CONDA_PREFIX": str(folder), "CONDA_DEFAULT_ENV": "train"}
    assert demo("run", "-m", "show", env=conda, cwd=script.parent).stdout == f"{folder} fresh\n"
    piped = demo.execute(*demo.command, "run", "script", "-", input=SHOW, env={"VIRTUAL_ENV": str(folder)})
    assert piped.stdout == f"{folder} fresh\n"


@pytest.mark.slow
def test_a_script_in_the_active_environment_uses_the_cluster(
    demo: Sandbox, environments: dict[str, Path], script: Path
) -> None:
    script.write_text(
        "import os, sys\nimport tensorflow.compat.v1 as tf\n"
        "with tf.Graph().as_default(), tf.device('/job:worker/task:0'):\n"
        "    total = tf.constant(20) + 22\n"
        "    with tf.Session(os.environ['TFCLUSTER_MASTER']) as session:\n"
        "        print(sys.prefix, session.run(total))\n"
    )
    folder = environments["own"]
    assert demo("run", script, env={"VIRTUAL_ENV": str(folder)}, timeout=280).stdout == f"{folder} 42\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none", f"has no TensorFlow, and the cluster has {VERSION}"),
        ("other", f"has TensorFlow 1.0.0, and the cluster has {VERSION}"),
        ("empty", "cannot be used ({}/bin/python: No such file or directory)"),
    ],
)
def test_an_environment_that_does_not_fit_is_noted(
    demo: Sandbox, environments: dict[str, Path], script: Path, name: str, reason: str
) -> None:
    folder = environments[name]
    result = demo("run", script, env={"VIRTUAL_ENV": str(folder)})
    assert result.stdout == OWN
    assert result.stderr == (
        f"note: the active environment, {folder}, {reason.format(folder)}: the script runs with the cluster's Python, "
        f"as with `--python {sys.executable}`\n"
    )


def test_no_other_environment_is_active(
    demo: Sandbox, environments: dict[str, Path], script: Path, tmp_path: Path
) -> None:
    link = tmp_path / "environment"
    link.symlink_to(sys.prefix)
    base = {"CONDA_PREFIX": str(environments["none"]), "CONDA_DEFAULT_ENV": "base"}
    for env in ({}, {"VIRTUAL_ENV": sys.prefix}, {"VIRTUAL_ENV": str(link)}, base):
        result = demo("run", script, env=env)
        assert (result.stdout, result.stderr) == (OWN, ""), env
    bundled = demo("run", "pi", "--samples", "1e4", env={"VIRTUAL_ENV": str(environments["none"])})
    assert notes_of(bundled.stderr) == []


def test_the_user_names_a_python(demo: Sandbox, environments: dict[str, Path], script: Path) -> None:
    own, none = environments["own"], environments["none"]
    active = {"VIRTUAL_ENV": str(environments["other"])}
    named = demo("run", "--name", "named", "--python", "own/bin/python", script, cwd=own.parent, env=active)
    assert (named.stdout, named.stderr) == (f"{own} fresh\n", "")
    assert f"python     {own}/bin/python\n" in demo("runs", "named").stdout
    assert demo("rerun", "named", env=active).stdout == f"{own} fresh\n"
    without = demo("run", "--python", none / "bin" / "python", script, env=active)
    assert (without.stdout, without.stderr) == (f"{none} fresh\n", ""), "not every script requires TensorFlow"
    for same in (sys.executable, os.path.join(sys.prefix, "bin", "python3")):
        result = demo("run", "--python", same, script, env=active)
        assert (result.stdout, result.stderr) == (OWN, "")


def test_a_python_that_cannot_run_a_script_is_refused(
    demo: Sandbox, environments: dict[str, Path], script: Path, tmp_path: Path
) -> None:
    other, none = (environments[name] / "bin" / "python" for name in ("other", "none"))

    def error_of(python: Path | str, *options: str) -> str:
        return demo("run", *options, "--python", python, script, code=2, cwd=tmp_path).stderr

    assert error_of(other) == (
        f"error: --python {other} has TensorFlow 1.0.0, and the cluster has {VERSION}\n"
        f"hint: Install it with `{other} -m pip install tensorflow=={VERSION}`. "
        f"The cluster's Python is {sys.executable}.\n"
    )
    assert f"--python {none} has no TensorFlow, and the cluster has {VERSION}\n" in error_of(none, "--seed", "1")
    assert "--python /bin/true: it is no Python (exit code 0)\nhint: " in error_of("/bin/true")
    (tmp_path / "bin").mkdir()
    assert "'bin' is a folder. Its Python is bin/bin/python" in error_of("bin")
    assert "'show.py' cannot be executed. Name the file of a Python" in error_of("show.py")
    assert "'sh': no such file. Its path is " in error_of("sh")


def test_the_members_of_a_launch_run_with_it_too(demo: Sandbox, environments: dict[str, Path], script: Path) -> None:
    folder = environments["own"]
    result = demo("launch", script, env={"VIRTUAL_ENV": str(folder)})
    assert sorted(result.stdout.splitlines()) == [f"worker:{index} | {folder} fresh" for index in range(2)]
    assert len(notes_of(result.stderr)) == 1
    other = environments["other"] / "bin" / "python"
    refused = demo("launch", "--max-restarts", "1", "--python", other, script, code=2).stderr
    assert f"error: --python {other} has TensorFlow 1.0.0, and the cluster has {VERSION}\n" in refused
    assert "restarting" not in refused
    assert f"hint: Install it with `{other} -m pip install " in refused


def test_a_package_that_is_missing(demo: Sandbox, environments: dict[str, Path], script: Path) -> None:
    script.write_text("import only_here\n")
    error = "error: show.py failed: ModuleNotFoundError: No module named 'only_here'\nhint: "
    python, active = environments["none"] / "bin" / "python", {"VIRTUAL_ENV": str(environments["own"])}
    assert demo("run", "--python", python, script).stderr == ""
    assert "error: " not in demo("run", script, env=active).stderr
    failed = demo.execute(*demo.command, "run", script)  # its traceback is the script's own
    assert failed.stderr.endswith(
        f"{error}{sys.executable} does not have only_here. Install it with `{sys.executable} -m pip install PACKAGE`, "
        "or choose another Python with `--python PATH`.\n"
    )
    assert failed.returncode == 1


def test_a_relative_folder_of_pythonpath_is_in_the_folder_of_the_command(
    demo: Sandbox, environments: dict[str, Path], script: Path
) -> None:
    (script.parent / "more").mkdir()
    (script.parent / "more" / "found.py").touch()
    script.write_text(f"{SHOW}import found\n")
    for folder in (sys.prefix, environments["own"]):
        result = demo("run", script, env={"PYTHONPATH": "more", "VIRTUAL_ENV": str(folder)}, cwd=script.parent)
        assert result.stdout == f"{folder} fresh\n"


def test_a_package_that_a_member_misses(sandbox: Sandbox) -> None:
    (sandbox.folder / "project").mkdir()
    sandbox.spec("import only_here\n", "project/train.py")
    sandbox.spec("", "project/requirements.txt")
    member = sandbox.execute(*sandbox.command, "launch", "--workers", "1", "project/train.py")
    assert "-m pip install -r project/requirements.txt`, or choose another Python with" in member.stderr
    assert member.returncode == 1
