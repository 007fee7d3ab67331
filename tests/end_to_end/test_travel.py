"""Code that is sent to another host, over a real sshd: the folder of a script, and only what the host does not have."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from tests.clusters import Hosts
from tests.conftest import SCRIPTS, Result
from tests.hosts import HostsSandbox

pytestmark = pytest.mark.slow

_JOBS = "jobs:\n  worker: {tasks: 1, hosts: [alpha]}\n"
_SCRIPT = (SCRIPTS / "shows_its_folder.py").read_text()


HOSTS = Hosts(("alpha",), _JOBS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text(_SCRIPT)
    (folder / "helper.py").write_text("VALUE = 'beside '")
    (folder / "package" / "part.py").write_text("VALUE = 'below'")
    (folder / "data file.txt").write_text("data")
    (folder / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / "empty").touch()
    os.symlink("data file.txt", folder / "link")
    return folder


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_input_of_a_program_is_sent(hosts: HostsSandbox, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("x,y\n0,1\n1,3\n2,5\n")
    env = {"TFCLUSTER_CLUSTER": "wide"}
    run = hosts.execute(*hosts.command, "run", "mean", "-", "-o", "json", input="1\n2\n6\n", env=env)
    assert json.loads(run.stdout.splitlines()[-1])["result"]["mean"] == 3.0
    words = ("run", "linear", "--data", "points.csv", "--steps", "5", "-o", "json")
    result = hosts(*words, cwd=tmp_path, env=env).stdout.splitlines()[-1]
    assert json.loads(result)["result"]["least_squares"] == pytest.approx({"w": 2, "b": 1})
    error = hosts("run", "linear", "--data", "missing.csv", cwd=tmp_path, env=env, code=2).stderr
    assert "'missing.csv': no such file" in error


def run(hosts: HostsSandbox, project: Path, *arguments: str, code: int = 0) -> Result:
    return hosts("run", *arguments, cwd=project, code=code, env={"TFCLUSTER_CLUSTER": "wide"})


_FILES = {
    "data file.txt": [4, False],
    "empty": [0, False],
    "helper.py": [17, False],
    "link": "-> data file.txt",
    "package/part.py": [15, False],
    "tool.sh": [10, True],
    "train.py": [len(_SCRIPT), False],
}


def test_the_folder_of_a_script_is_sent_and_only_what_differs_is_sent_again(hosts: HostsSandbox, project: Path) -> None:
    os.mkfifo(project / "pipe")
    weird = os.fsdecode(b"new\nline \xff")
    (project / weird).write_text("odd")
    (project / "__pycache__").mkdir()
    (project / "__pycache__" / "old.pyc").write_text("never")
    first = run(hosts, project, "train.py", "--epochs", "3")
    seen = json.loads(first.stdout)
    assert {name[1:-1]: value for name, value in seen["files"].items()} == {**_FILES, ascii(weird)[1:-1]: [3, False]}
    assert (seen["argv"], seen["file"], seen["path"]) == (["train.py", "--epochs", "3"], "train.py", ".")
    assert seen["helper"] == "beside below"
    assert f"sending to alpha: 7 files of {project}, " in first.stderr
    assert "B; the largest: train.py (" in first.stderr
    (project / weird).write_text("another")
    assert rf"sending to alpha: 1 file of {project}, 7 B (new\nline \udcff)" in run(hosts, project, "train.py").stderr
    (project / weird).write_text("odd")
    assert "left out, because they are neither files nor folders: pipe" in first.stderr
    (left,) = [line for line in first.stderr.splitlines() if "wrote beside itself stay on alpha" in line]
    assert {path.name for path in Path(left.rpartition(", in ")[2]).iterdir()} == {"data file.txt", "made.txt"}

    again = run(hosts, project, "train.py")
    assert json.loads(again.stdout)["files"] == seen["files"], "the cache is as it was"
    assert "sending" not in again.stderr
    (project / "helper.py").write_text("VALUE = 'another '")
    third = run(hosts, project, "train.py")
    assert json.loads(third.stdout)["helper"] == "another below"
    assert f"sending to alpha: 1 file of {project}, 18 B (helper.py)" in third.stderr

    state = hosts.network.home("alpha") / "state" / "tfcluster"
    os.rename(state / ".code", state / ".code-away")
    (state / ".code").touch()
    error = run(hosts, project, "train.py", code=1).stderr
    assert f"{state}/.code: cannot store the code: File exists" in error
    (state / ".code").unlink()
    assert json.loads(run(hosts, project, "train.py").stdout)["files"]["'train.py'"], "a cache may be deleted"


def test_a_package_that_a_host_lacks_and_a_python_of_this_machine(hosts: HostsSandbox, project: Path) -> None:
    (project / "train.py").write_text("import pandaz\n")
    (project / "requirements.txt").write_text("pandaz\n")
    command = (*hosts.command, "run", "train.py")  # its traceback is the script's own
    error = hosts.execute(*command, cwd=project, env={"TFCLUSTER_CLUSTER": "wide"}).stderr
    assert "error: train.py failed: ModuleNotFoundError: No module named 'pandaz'\nhint: " in error
    assert "on host alpha does not have pandaz. To install packages there, such as those in requirements.txt" in error
    assert ' -m pip install PACKAGE"]` to the host in the spec, and type `tfcluster up' in error
    refused = run(hosts, project, "--python", sys.executable, "train.py", code=2).stderr
    assert refused == (
        f"error: --python {sys.executable} is a Python of your machine, and the script runs on alpha\n"
        "hint: `python:` of the host in the spec names the Python there.\n"
    )


@pytest.mark.needs("git")
def test_git_and_tfclusterignore_say_what_is_code_and_the_script_starts_in_the_matching_folder(
    hosts: HostsSandbox, project: Path
) -> None:
    top = project.parent / "repository"
    (top / "tests").mkdir(parents=True)
    os.rename(project, top / "src")
    (top / ".gitignore").write_text("*.log\n")
    (top / "tracked.log").write_text("x")
    (top / "ignored.log").write_text("x")
    (top / "src" / ".tfclusterignore").write_text("/data file.txt\n*.sh\n!tool.sh\n")
    (top / "tests" / "unknown.py").write_text("")
    subprocess.run(
        "git init -q && git add -f tracked.log src && rm src/empty", shell=True, cwd=top, check=True, timeout=60
    )
    seen = json.loads(run(hosts, top, "src/train.py").stdout)
    code = {".tfclusterignore", "helper.py", "link", "package/part.py", "tool.sh", "train.py"}
    others = {".gitignore", "tests/unknown.py", "tracked.log"}
    assert {name[1:-1] for name in seen["files"]} == {f"src/{name}" for name in code} | others
    assert (seen["argv"], seen["file"], seen["path"]) == (["src/train.py"], "src/train.py", "src")
    below = json.loads(run(hosts, top / "tests", "../src/train.py").stdout)
    assert (below["argv"], below["cwd"], below["path"]) == (["../src/train.py"], "tests", "../src")
    assert {name[1:-1] for name in below["files"]} == {"unknown.py"}
    module = json.loads(run(hosts, top / "src", "-m", "train", "7").stdout)
    assert (module["file"], module["argv"][1:], module["path"]) == ("train.py", ["7"], ".")


def test_a_home_folder_is_not_sent_and_much_code_is_not_sent_unasked(hosts: HostsSandbox, project: Path) -> None:
    home = hosts.network.home("here")
    script = home / "alone.py"
    script.write_text("import os\nprint(sorted(os.listdir()))\n")
    result = run(hosts, home, "alone.py")
    assert result.stdout == "['alone.py']\n"
    assert f"only alone.py is sent, not the rest of {home}: move it to its own folder" in result.stderr

    with open(project / "large.bin", "wb") as file:
        file.truncate(101 * 2**20)
    refused = run(hosts, project, "train.py", code=2)
    assert f"{project}: 8 files, 101 MiB; the largest: large.bin (101 MiB), train.py (" in refused.stderr
    assert "or send it anyway with --yes" in refused.stderr
    command = (*hosts.command, "run", "train.py")
    with hosts.at_terminal(*command, cwd=str(project), env={"TFCLUSTER_CLUSTER": "wide"}) as asked:
        asked.expect_exact("Send it? [y/N]")
        asked.sendline("n")
        asked.expect_exact("nothing was sent")
    with open(project / "large.bin", "wb") as file:
        file.write(os.urandom(6 * 2**20))  # more than waits in memory
    env = {**hosts.with_settings({"PIPE_PROGRESS_SECONDS": 0}), "TFCLUSTER_CLUSTER": "wide"}
    with hosts.at_terminal(*command, cwd=str(project), env=env) as shown:
        shown.expect("of 6 MiB sent")
        shown.expect_exact('"helper"')
    (hosts.network.home("alpha") / "state/tfcluster/.code" / _digest(project / "large.bin")).unlink()
    few = hosts.with_settings({"CODE_UNASKED_BYTES": 2**20, "PIPE_PROGRESS_SECONDS": 0})
    seen = hosts("run", "script", "--yes", "train.py", cwd=project, env={**few, "TFCLUSTER_CLUSTER": "wide"})
    assert json.loads(seen.stdout)["files"]["'large.bin'"] == [6 * 2**20, False]
    assert "sending to alpha: 1 file of" in seen.stderr
    assert " sent" not in seen.stderr
    assert not list((hosts.network.home("alpha") / "state").glob("tfcluster/.code/.new-*"))


def test_a_folder_and_an_archive_with_a_main_module_run_there(hosts: HostsSandbox, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "helper.py").write_text("import sys\nprint('helps', *sys.argv[1:])\n")
    (folder / "__main__.py").write_text("import helper\n")
    zipapp.create_archive(folder)
    for start in ("./app", "./app.pyz"):
        assert run(hosts, tmp_path, start, "x").stdout == "helps x\n"
        launched = hosts("launch", start, "{rank}", cwd=tmp_path, env={"TFCLUSTER_CLUSTER": "wide"})
        assert launched.stdout == "worker:0 | helps 0\n"


_WRITES = (SCRIPTS / "writes_output.py").read_text()


def test_what_a_run_has_written_is_fetched_also_when_the_cluster_is_down(hosts: HostsSandbox, project: Path) -> None:
    (project / "writes.py").write_text(_WRITES)
    run(hosts, project, "writes.py", code=3)
    (name,) = [each["run"] for each in hosts.json("runs", "-n", "1")]
    fetched = hosts("fetch", name[:-1], cwd=project, env={"TFCLUSTER_CLUSTER": "wide"})
    assert fetched.stdout == f"4 files, 1000 KiB, fetched to {name}\n"
    copy = project / name
    files = {os.path.relpath(path, copy) for path in copy.rglob("*") if path.is_symlink() or not path.is_dir()}
    assert files == {"deep/model.bin", os.fsdecode(b"empty \xff"), "latest", "run.sh", ".tfclusterignore"}
    assert "sending" not in run(hosts, project, "writes.py", code=3).stderr, "what was fetched is no code"
    assert (copy / "deep" / "model.bin").read_bytes() == bytes(range(256)) * 4000
    assert os.access(copy / "run.sh", os.X_OK)
    assert os.readlink(copy / "latest") == "deep/model.bin"

    hosts("down")
    (copy / "deep" / "model.bin").unlink()
    (copy / "run.sh").write_text("mine")
    refused = hosts("fetch", name, copy, "-c", "wide", cwd=hosts.folder, code=2)
    assert f"{copy} has other files of the same names: run.sh" in refused.stderr
    assert not (copy / "deep" / "model.bin").exists()
    again = hosts.json("fetch", name, copy, "-c", "wide", "--overwrite")
    assert again == {"run": name, "folder": str(copy), "files": 2, "bytes": 1024004, "unchanged": 2}
    assert (copy / "run.sh").read_text() == "true"
    assert "no run 'nothing'" in hosts("fetch", "nothing", "-c", "wide", code=2).stderr
