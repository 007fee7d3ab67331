"""Which folder is sent with a script, and which of its files, even if they change then; the git commit of a run."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tfcluster import settings
from tfcluster.client.runs.code import CodeFolder, CodeTree, _read, list_files
from tfcluster.client.runs.submission import describe_changes, describe_script
from tfcluster.core.code import CodeFile, decode_manifest, digest_of, encode_manifest
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


def words(text: str, *others: str) -> st.SearchStrategy[str]:
    return st.sampled_from([*text.split(), *others, os.fsdecode(b"\xff")])


NAMES = words(r"a b a.csv data x.py .h #odd !odd [q] a\b", "c ", "n\n", "x\ny")
PARTS = words(
    r"a b *.csv data x.* d?ta [ab] [!a]* []-a] [a-c].csv * ** da**a ?* .* n #odd \#odd \!odd \a a\\b [[]q] \[q] [z-a]"
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PATTERNS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "", "", "!", "/", "!/"]),
    st.lists(PARTS, max_size=3).map("/".join),
    st.sampled_from(["", "", "", "/", " ", "/  ", "\r", "\\ ", "/c\\ "]),
)


def test_a_pattern_that_would_take_too_long_is_refused_with_its_place(home: Path) -> None:
    script = script_in(home / "project")
    ignored = home / "project" / ".tfclusterignore"
    ignored.write_text("# ***** a comment\n*a*b*c*/**/*.csv\n")
    assert [path for path, _ in CodeFolder.of(script, str(home)).files] == [".tfclusterignore", "train.py"]
    ignored.write_text("*.csv\ndata/*a*a*a*a*b\n")
    with pytest.raises(ClusterError) as refused:
        _ = CodeFolder.of(script, str(home)).files
    assert refused.value.message.startswith(f"{ignored}:2: a name with more than 4 stars")
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.needs("git")
@given(
    st.lists(PATHS, min_size=5, max_size=30),
    st.dictionaries(PATHS, st.lists(PATTERNS, max_size=5), max_size=2),
    st.lists(PATTERNS, max_size=5),
)
@hypothesis_settings(deadline=None, max_examples=50)
def test_patterns_mean_what_git_means(paths: list[str], below: dict[str, list[str]], lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        for path in ("other/file", *paths):
            with suppress(FileExistsError, NotADirectoryError):  # a file has the name of a folder
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).touch()
        for path, patterns in {**below, "": lines}.items():
            if (root / path).is_dir():
                (root / path / ".tfclusterignore").write_bytes(os.fsencode("\n".join(patterns)))
        git = ["git", f"--git-dir={folder}/git", f"--work-tree={root}"]
        subprocess.run([*git, "init", "-q"], check=True, timeout=60)
        command = [*git, "ls-files", "--others", "-z", "--exclude-per-directory", ".tfclusterignore"]
        listed = subprocess.run(command, cwd=root, check=True, timeout=60, capture_output=True).stdout
        sent = {path for path, status in list_files(str(root))[0] if stat.S_ISREG(status.st_mode)}
        assert sent == {os.fsdecode(path) for path in listed.split(b"\0") if path}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a regular file"),
        (os.mkdir, "not a regular file"),
        (lambda path: Path(path).write_text("a\n" * 10**6), "2000000 bytes long, it has at most"),
    ],
    ids=["pipe", "folder", "long file"],
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


def ran(digest: str, commit: str | None, is_clean: bool | None) -> RunOptions:
    """The options of a run of a script with a digest."""
    return RunOptions("script", {"path": "/a/x.py"}, digest=digest, commit=commit, is_clean=is_clean)


CLEAN, WITHOUT_GIT = ran("d", "c" * 40, True), ran("d", None, None)


@pytest.mark.parametrize(
    ("then", "now", "changes"),
    [
        (CLEAN, CLEAN, []),
        (CLEAN, ran("e", "c" * 40, True), ["x.py has changed since x-1"]),
        (CLEAN, ran("d", "c" * 40, False), ["x-1 ran at commit cccccccccc; now it is commit cccccccccc with changes"]),
        (CLEAN, ran("d", "f" * 40, True), ["x-1 ran at commit cccccccccc; now it is commit ffffffffff"]),
        # It is not known what it ran.
        (ran("d", "c" * 40, False), CLEAN, ["x-1 ran at commit cccccccccc with changes; now it is commit cccccccccc"]),
        (CLEAN, WITHOUT_GIT, ["x-1 ran at commit cccccccccc; now it is no git commit"]),
        (WITHOUT_GIT, WITHOUT_GIT, []),
    ],
)
def test_what_has_changed_since_a_run_is_said(then: RunOptions, now: RunOptions, changes: list[str]) -> None:
    assert describe_changes("x-1", then, now) == changes


@pytest.mark.needs("git")
def test_a_repository_that_was_fetched_executes_no_command(tmp_path: Path) -> None:
    folder, executed = tmp_path / "fetched", tmp_path / "executed"
    commit_script(folder, "print(1)\n")
    command = f"touch {executed}; false"
    subprocess.run(["git", "-C", folder, "config", "core.fsmonitor", command], check=True, timeout=60)
    assert describe(folder)[2] is True
    CodeFolder.of(str(folder / "train.py"), str(folder))
    assert not executed.exists()
