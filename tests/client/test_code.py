"""Which folder is sent with a script, and which of its files, even if they change then; the git commit of a run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.client.runs.code import CodeFolder, CodeTree, _read
from tfcluster.client.runs.submission import describe_changes, describe_script
from tfcluster.core.code import CodeFile, decode_manifest, digest_of, encode_manifest
from tfcluster.core.programs import ProgramTraits
from tfcluster.core.runs import RunOptions
from tfcluster.errors import ClusterError, ExitCode


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
    for name in (
        "venv/pyvenv.cfg",
        "venv/lib/x.py",
        "data/a.csv",
        "data/b.csv",
        "old/train.py",
        "logs/keep",
        "logs/old",
    ):
        (home / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "project" / name).touch()
    (home / "project" / "none").mkdir()
    (home / "project" / ".tfclusterignore").write_text("# data\n*.csv\nold/\ntrain.py\nlogs/*\n!logs/keep\n")
    (home / "project" / "data" / ".tfclusterignore").write_text("!b.csv\n")
    paths = {path for path, _ in CodeFolder.of(script, str(home / "project")).files}
    ignores = {".tfclusterignore", "data/.tfclusterignore"}
    assert paths == {"data/b.csv", "logs/keep", "none", "train.py", *ignores}, "the script itself is always sent"


@pytest.mark.needs("git")
def test_other_work_trees_and_in_a_folder_that_git_ignores_all_files_are_sent(home: Path) -> None:
    script = script_in(home / "project")
    (home / "project" / "lib").mkdir()
    (home / "project" / "lib" / "new.py").touch()
    subprocess.run("git init -q && git -C lib init -q", shell=True, cwd=home / "project", check=True, timeout=60)
    assert {path for path, _ in CodeFolder.of(script, str(home / "project")).files} == {"lib/new.py", "train.py"}
    script = script_in(home / "project" / "scratch")
    (home / "project" / "scratch" / "beside.py").touch()
    (home / "project" / ".gitignore").write_text("scratch/\n")
    folder = CodeFolder.of(script, str(home / "project" / "scratch"))
    assert {path for path, _ in folder.files} == {"beside.py", "train.py"}


def test_names_with_newlines_are_shown_on_one_line_and_too_many_files_are_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = script_in(home / "project")
    (home / "project" / "data\n\u202e.csv").write_text("1")
    described = CodeFolder.of(script, str(home / "project")).describe()
    assert described == rf"{home}/project: 2 files, 1 B; the largest: data\n\u202e.csv (1 B), train.py (0 B)"
    monkeypatch.setattr(settings, "CODE_FILES_MAX", 1)
    with pytest.raises(ClusterError, match="has more than 1 files"):
        CodeFolder.of(script, str(home / "project"))


def test_much_code_is_not_sent_unasked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = script_in(home / "project")
    (home / "project" / "data").write_bytes(b"12345")

    def is_large(size: int, files: int) -> bool:
        monkeypatch.setattr(settings, "CODE_UNASKED_BYTES", size)
        monkeypatch.setattr(settings, "CODE_UNASKED_FILES_MAX", files)
        return CodeFolder.of(script, str(home / "project")).is_large

    assert [is_large(*limits) for limits in ((5, 2), (4, 2), (5, 1))] == [False, True, True]


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
    with pytest.raises(ClusterError, match="a damaged list of files arrived"):
        decode_manifest(encode_manifest([CodeFile(path)]))


@pytest.mark.needs("git")
@pytest.mark.parametrize(
    "lines",
    [
        ["*.csv", "!b.csv", "# *.py", "", "  "],
        ["/a.csv", "data/", "!data/b.csv"],
        ["data/*.csv", "!/data/b.csv"],
        ["**/b.csv", "deep/**/x.py"],
        ["deep/**", "!deep/d1/"],
        ["d?ta", "[ab].csv", "[!ab].py", "[^x].txt"],
        ["x.py/", "d1"],
        ["\\#odd", "\\!odd", "with space\\ ", "trailing.txt   "],
        ["\\*.csv", "*\\?", "deep/d1/**/x.py", "/**/d2/*"],
        ["*", "!*.py", "!*/"],
        ["**", "!a.csv"],
        ["data/**/b.csv", "a*c*v", "/deep/*/*/x.py", "[z-a]", "[", "!"],
    ],
    ids=" ".join,
)
def test_patterns_mean_what_git_means(home: Path, lines: list[str]) -> None:
    project = home / "project"
    names = ["a.csv", "b.csv", "#odd", "!odd", "with space ", "trailing.txt", "*.csv", "what?", "c.txt", "x.txt"]
    names += ["data/a.csv", "data/b.csv", "data/in/b.csv", "deep/x.py", "deep/d1/x.py", "deep/d1/d2/x.py", "b.py"]
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    (project / ".tfclusterignore").write_text("\n".join(lines))
    sent = {path for path, _ in CodeFolder.of(script_in(project), str(project)).files if (project / path).is_file()}
    git = ["git", "ls-files", "--others", "-z", "--exclude-from", ".tfclusterignore"]
    subprocess.run(["git", "init", "-q"], cwd=project, check=True, timeout=60)
    listed = subprocess.run(git, cwd=project, check=True, timeout=60, capture_output=True, text=True).stdout
    assert sent == {*listed.split("\0")[:-1], "train.py"}


@pytest.mark.parametrize("pattern", ["*a" * 100 + "b", "**/a/" * 100 + "b", "*" * 4000 + "b"])
def test_no_pattern_takes_long(home: Path, pattern: str) -> None:
    script = script_in(home / "project")
    folder = home / "project" / "/".join(["a"] * 100)
    folder.mkdir(parents=True)
    (folder / ("a" * 200)).touch()
    (home / "project" / ".tfclusterignore").write_text(pattern)
    assert len(CodeFolder.of(script, str(home / "project")).files) == 3


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a regular file"),
        (os.mkdir, "not a regular file"),
        (lambda path: Path(path).write_text("a" * 5000), "a line with 5000 characters, it has at most 4096"),
        (lambda path: Path(path).write_text("a\n" * 10**6), "2000000 bytes long, it has at most"),
    ],
    ids=["pipe", "folder", "long line", "long file"],
)
def test_an_ignore_file_that_is_none_is_named(home: Path, make: Callable[[str], object], why: str) -> None:
    script = script_in(home / "project")
    path = home / "project" / ".tfclusterignore"
    make(str(path))
    with pytest.raises(ClusterError, match=f"{path}: {why}") as caught:
        CodeFolder.of(script, str(home / "project"))
    assert caught.value.exit_code is ExitCode.USAGE


def commit_script(folder: Path, text: str) -> str:
    """Commit a script to a repository of its own; the commit's digest."""
    folder.mkdir()
    (folder / "train.py").write_text(text)
    user = ["-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*user, "commit", "-q", "-m", text], ["rev-parse", "HEAD"]):
        result = subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True, timeout=60)
    return result.stdout.strip()


def describe(folder: Path) -> tuple[str | None, str | None, bool | None]:
    return describe_script({"path": str(folder / "train.py"), "cwd": str(folder)})


@pytest.mark.needs("git")
def test_the_commit_is_that_of_the_scripts_folder_also_in_a_hook_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = commit_script(tmp_path / "mine", "mine"), commit_script(tmp_path / "other", "other")
    assert mine != other
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other/.git/index"))
    assert describe(tmp_path / "mine") == (digest_of(b"mine"), mine, True)


def test_a_run_does_not_wait_long_for_the_commit_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine/.git").mkdir(parents=True)
    (tmp_path / "mine/train.py").write_text("mine")
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(settings, "GIT_STATUS_SECONDS", 0.1)
    assert describe(tmp_path / "mine") == (digest_of(b"mine"), None, None)


def test_what_has_changed_since_a_run_is_said() -> None:
    def options(digest: str, commit: str | None, is_clean: bool | None) -> RunOptions:
        return RunOptions(
            "script", ProgramTraits(), {"path": "/a/x.py"}, digest=digest, commit=commit, is_clean=is_clean
        )

    then = options("d", "c" * 40, True)
    assert describe_changes("x-1", then, then) == []
    assert describe_changes("x-1", then, options("e", "c" * 40, False)) == [
        "x.py has changed since x-1",
        "x-1 ran at commit cccccccccc; now it is commit cccccccccc with changes",
    ]
    assert describe_changes("x-1", then, options("d", "f" * 40, True)) == [
        "x-1 ran at commit cccccccccc; now it is commit ffffffffff"
    ]
    assert describe_changes("x-1", options("d", "c" * 40, False), then) != [], "it is not known what it ran"
    assert describe_changes("x-1", then, options("d", None, None)) == [
        "x-1 ran at commit cccccccccc; now it is no git commit"
    ]
    assert describe_changes("x-1", options("d", None, None), options("d", None, None)) == []


@pytest.mark.needs("git")
def test_a_repository_that_was_fetched_executes_no_command(tmp_path: Path) -> None:
    folder, executed = tmp_path / "fetched", tmp_path / "executed"
    commit_script(folder, "print(1)\n")
    command = f"touch {executed}; false"
    subprocess.run(["git", "-C", folder, "config", "core.fsmonitor", command], check=True, timeout=60)
    assert describe(folder)[2] is True
    CodeFolder.of(str(folder / "train.py"), str(folder))
    assert not executed.exists()
