"""Which folder is sent with a script, what of it, and files that change meanwhile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.client.runs.code import CodeFolder, CodeTree, _read
from tfcluster.core.code import CodeFile, decode_manifest, encode_manifest
from tfcluster.errors import ClusterError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def script_in(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").touch()
    return str(folder / "train.py")


@pytest.mark.parametrize(
    ("place", "start", "root", "script", "inside"),
    [
        ("project", "project", "project", "train.py", ""),
        ("project/src", "project", "project", "src/train.py", ""),
        ("project/src", "project/tests", "project/src", "train.py", ""),
        ("project", "", "project", "train.py", ""),  # typed in the home folder, which is not sent
        ("repository/src", "repository/tests/unit", "repository", "src/train.py", "tests/unit"),
        ("repository/src", "repository/src/deep", "repository/src", "train.py", "deep"),
        ("repository/src", "project", "repository/src", "train.py", ""),
    ],
)
def test_the_folder_that_is_sent(home: Path, place: str, start: str, root: str, script: str, inside: str) -> None:
    for each in ("project/tests", "repository/.git", start):
        (home / each).mkdir(parents=True, exist_ok=True)
    folder = CodeFolder.of(script_in(home / place), str(home / start))
    assert (folder.root, folder.script, folder.start) == (str(home / root), script, inside)
    assert script in {path for path, _ in folder.files}


@pytest.mark.parametrize("place", ["", ".."])
def test_of_a_home_only_the_script_is_sent(home: Path, place: str) -> None:
    home.mkdir()
    script = script_in(Path(os.path.normpath(home / place)))
    (home / "private").touch()
    folder = CodeFolder.of(script, str(home))
    assert [path for path, _ in folder.files] == ["train.py"]
    assert folder.notes[0].startswith("only train.py is sent")


def test_a_script_behind_a_link_is_sent_with_its_own_folder(home: Path) -> None:
    real = script_in(home / "project")
    (home / "bin").mkdir()
    os.symlink(real, home / "bin" / "train")
    os.symlink(real, home / "project" / "same")  # absolute, and into the folder
    folder = CodeFolder.of(str(home / "bin" / "train"), str(home / "bin"))
    assert (folder.root, folder.script) == (str(home / "project"), "train.py")
    links = [file.link for file in CodeTree.of(folder).files if file.link]
    assert links == ["train.py"]


def test_an_environment_and_what_nested_patterns_name_is_left_out(home: Path) -> None:
    script = script_in(home / "project")
    for name in ("venv/pyvenv.cfg", "venv/lib/x.py", "data/a.csv", "data/b.csv", "old/train.py", "logs/keep"):
        (home / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "project" / name).touch()
    (home / "project" / "none").mkdir()
    (home / "project" / ".tfclusterignore").write_text("# data\n*.csv\nold/\ntrain.py\n")
    (home / "project" / "data" / ".tfclusterignore").write_text("!b.csv\n")
    paths = {path for path, _ in CodeFolder.of(script, str(home / "project")).files}
    ignores = {".tfclusterignore", "data/.tfclusterignore"}
    assert paths == {"data/b.csv", "logs/keep", "none", "train.py", *ignores}, "the script itself is always sent"


@pytest.mark.needs("git")
def test_other_work_trees_in_a_work_tree_are_sent_too(home: Path) -> None:
    script = script_in(home / "project")
    (home / "project" / "lib").mkdir()
    (home / "project" / "lib" / "new.py").touch()
    subprocess.run("git init -q && git -C lib init -q", shell=True, cwd=home / "project", check=True, timeout=60)
    assert {path for path, _ in CodeFolder.of(script, str(home / "project")).files} == {"lib/new.py", "train.py"}


@pytest.mark.needs("git")
def test_in_a_folder_that_git_ignores_all_files_are_sent(home: Path) -> None:
    script = script_in(home / "project" / "scratch")
    (home / "project" / "scratch" / "beside.py").touch()
    (home / "project" / ".gitignore").write_text("scratch/\n")
    subprocess.run(["git", "init", "-q"], cwd=home / "project", check=True, timeout=60)
    folder = CodeFolder.of(script, str(home / "project" / "scratch"))
    assert {path for path, _ in folder.files} == {"beside.py", "train.py"}


def test_too_many_files_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = script_in(home / "project")
    (home / "project" / "another").touch()
    monkeypatch.setattr(settings, "CODE_FILES_MAX", 1)
    with pytest.raises(ClusterError, match="has more than 1 files"):
        CodeFolder.of(script, str(home / "project"))


def test_a_file_that_changes_while_it_is_sent(home: Path) -> None:
    script = script_in(home / "project")
    log = home / "project" / "log"
    log.write_text("one\n")
    files = {file.path: file for file in CodeTree.of(CodeFolder.of(script, str(home / "project"))).files}
    log.write_text("one\ntwo\n")
    assert b"".join(_read(str(log.parent), files["log"])) == b"one\n", "what was added is left out"
    for change in (lambda: log.write_text("two\n"), lambda: log.write_text(""), log.unlink):
        change()
        with pytest.raises(ClusterError, match="log was changed while it was sent"):
            list(_read(str(log.parent), files["log"]))


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", ".", "a\0b"])
def test_a_manifest_does_not_lead_out_of_its_tree(path: str) -> None:
    with pytest.raises(ClusterError, match="list of files arrived that is damaged"):
        decode_manifest(encode_manifest([CodeFile(path)]))


def test_names_with_newlines_are_shown_on_one_line(home: Path) -> None:
    script = script_in(home / "project")
    (home / "project" / "data\n\u202e.csv").write_text("1")
    described = CodeFolder.of(script, str(home / "project")).describe()
    assert described == rf"{home}/project: 2 files, 1 B; the largest: data\n\u202e.csv (1 B), train.py (0 B)"
