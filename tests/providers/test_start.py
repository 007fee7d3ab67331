"""The program of a pod that starts its agent, with what is mounted in one way or another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tfcluster.paths import CODE_LINK, state_folder
from tfcluster.providers.kubernetes import start
from tfcluster.transport import resume

MODULE = "tfcluster.providers.kubernetes.start"


class ReplacedError(Exception):
    """Another program would have replaced this process; `module` is the one that it runs."""

    def __init__(self, folder: str, module: str) -> None:
        self.folder, self.module = folder, module


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a damaged topology, in the place of what the manifests mount."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    (folder / start.TOPOLOGY).write_bytes(b"not compressed")
    monkeypatch.setattr(start, "MOUNTED", folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("sys.argv", ["start", "train", "pod1"])
    monkeypatch.chdir(tmp_path)

    def replace(program: str, argv: list[str], environment: Any) -> None:
        raise ReplacedError(os.getcwd(), argv[2])

    monkeypatch.setattr(os, "execve", replace)
    return folder


def link_code(folder: Path) -> Path:
    """Let the journal of the host name a version of the code."""
    folder.mkdir()
    state = state_folder("train", "pod1")
    state.mkdir(parents=True)
    (state / CODE_LINK).symlink_to(folder)
    return folder


@pytest.mark.parametrize("is_earlier", [False, True])
def test_the_code_of_a_journal_runs_although_the_mounted_topology_is_damaged(
    mounted: Path, tmp_path: Path, is_earlier: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    code = link_code(tmp_path / "code")
    module = code.joinpath(*MODULE.split(".")).with_suffix(".py")
    if not is_earlier:
        module.parent.mkdir(parents=True)
        module.touch()
    with pytest.raises(ReplacedError) as replaced:
        start.install()
    expected = "tfcluster.transport.resume" if is_earlier else MODULE  # the earlier version has no such module
    assert (replaced.value.folder, replaced.value.module) == (str(code), expected)
    assert f"tfcluster cannot be started from {mounted}: " in capsys.readouterr().err


def test_without_a_journal_and_with_nothing_that_can_be_installed_the_reason_is_logged(
    mounted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        start.install()
    assert ended.value.code == 1
    assert f"tfcluster cannot be started from {mounted}: " in capsys.readouterr().err


def test_a_journal_that_exists_is_resumed_although_the_mounted_topology_is_damaged(
    mounted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed: list[list[str]] = []

    def record(arguments: list[str]) -> int:
        resumed.append(arguments)
        return 0

    monkeypatch.setattr(resume, "keep_code", lambda cluster, host: None)
    monkeypatch.setattr(resume, "main", record)
    assert start.main() == 0
    assert resumed == [["train", "pod1"]]
    assert f"the tasks of train cannot be started from {mounted}: " in capsys.readouterr().err
