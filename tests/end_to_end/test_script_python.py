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
    """The folders of three environments, by what they have of TensorFlow."""
    folder = tmp_path_factory.mktemp("environments")
    return {
        "own": make_environment(folder / "own", tensorflow="own"),
        "other": make_environment(folder / "other", tensorflow="1.0.0"),
        "none": make_environment(folder / "none"),
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
    assert demo.last_run()["result"]["metrics"] == {"loss": 0.5}
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


def test_an_environment_that_does_not_fit_is_noted_for_scripts(
    demo: Sandbox, environments: dict[str, Path], script: Path
) -> None:
    """tests/processes/test_interpreters.py has the environments that do not fit, and those that are not active."""
    active = {"VIRTUAL_ENV": str(environments["none"])}
    result = demo("run", script, env=active)
    assert (result.stdout, len(notes_of(result.stderr))) == (OWN, 1)
    assert notes_of(demo("run", "pi", "--samples", "1e4", env=active).stderr) == []


def test_the_user_names_a_python(demo: Sandbox, environments: dict[str, Path], script: Path) -> None:
    own, none = environments["own"], environments["none"]
    active = {"VIRTUAL_ENV": str(environments["other"])}
    named = demo("run", "--name", "named", "--python", "own/bin/python", script, cwd=own.parent, env=active)
    assert (named.stdout, named.stderr) == (f"{own} fresh\n", "")
    assert f"python     {own}/bin/python\n" in demo("runs", "named").stdout
    assert demo("rerun", "named", env=active).stdout == f"{own} fresh\n"
    without = demo("run", "--python", none / "bin" / "python", script, env=active)
    assert (without.stdout, without.stderr) == (f"{none} fresh\n", ""), "not every script requires TensorFlow"
    same = demo("run", "--python", os.path.join(sys.prefix, "bin", "python3"), script, env=active)
    assert (same.stdout, same.stderr) == (OWN, "")


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
    python = environments["none"] / "bin" / "python"
    assert demo("run", "--python", python, script).stderr == ""
    failed = demo.execute(*demo.command, "run", script)  # its traceback is the script's own
    assert failed.stderr.endswith(
        "error: show.py failed: ModuleNotFoundError: No module named 'only_here'\n"
        f"hint: {sys.executable} does not have only_here. Install it with `{sys.executable} -m pip install PACKAGE`, "
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


def test_a_package_that_a_member_misses(demo: Sandbox) -> None:
    (demo.folder / "project").mkdir()
    demo.spec("import only_here\n", "project/train.py")
    demo.spec("", "project/requirements.txt")
    member = demo.execute(*demo.command, "launch", "--each", "ps", "project/train.py")
    assert "-m pip install -r project/requirements.txt`, or choose another Python with" in member.stderr
    assert member.returncode == 1
