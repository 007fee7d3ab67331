"""The git commit in the record of a run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.client.runs.code import CodeFolder
from tfcluster.client.runs.submission import describe_script
from tfcluster.core.code import digest_of


def commit(folder: Path, text: str) -> str:
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
    mine, other = commit(tmp_path / "mine", "mine"), commit(tmp_path / "other", "other")
    assert mine != other
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other/.git/index"))
    assert describe(tmp_path / "mine") == (digest_of(b"mine"), mine, True)


def test_a_run_does_not_wait_long_for_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine/.git").mkdir(parents=True)
    (tmp_path / "mine/train.py").write_text("mine")
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(settings, "GIT_STATUS_SECONDS", 0.1)
    assert describe(tmp_path / "mine") == (digest_of(b"mine"), None, None)


@pytest.mark.needs("git")
def test_a_repository_that_was_fetched_executes_no_command(tmp_path: Path) -> None:
    folder, executed = tmp_path / "fetched", tmp_path / "executed"
    commit(folder, "print(1)\n")
    command = f"touch {executed}; false"
    subprocess.run(["git", "-C", folder, "config", "core.fsmonitor", command], check=True, timeout=60)
    assert describe(folder)[2] is True
    CodeFolder.of(str(folder / "train.py"), str(folder))
    assert not executed.exists()
