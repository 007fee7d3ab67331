"""The tree of code that a run gets: what is cleared of it when the run has ended, and what is the user's."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tfcluster.core.code import CodeFile, CodeLocation, digest_of, encode_manifest
from tfcluster.core.runs import RunOptions
from tfcluster.errors import ClusterError
from tfcluster.processes.runs.code_tree import CODE, clear_tree, enter_tree
from tfcluster.processes.runs.run_plan import RunPlan

_CONTENT = b"content"
_FILES = [
    CodeFile("data/a.csv", len(_CONTENT), 10**18, digest=digest_of(_CONTENT)),
    CodeFile("x.py", len(_CONTENT), 10**18, digest=digest_of(_CONTENT)),
    CodeFile("latest", link="data"),
    CodeFile("out"),
]


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    cache, folder = tmp_path / "cache", tmp_path / "run"
    cache.mkdir()
    folder.mkdir()
    manifest = encode_manifest(_FILES)
    for content in (_CONTENT, manifest):
        (cache / digest_of(content)).write_bytes(content)
    previous = os.umask(0)
    try:
        return enter(folder, cache, digest_of(manifest))
    finally:
        os.umask(previous)


def enter(folder: Path, cache: Path, tree: str) -> RunPlan:
    code = CodeLocation(tree, "x.py", "")
    parameters = {"argument": "x.py"}
    options = RunOptions("script", parameters)
    plan = RunPlan("script-1", "demo", options, folder, {}, "localhost:1", [], [], code=code)
    return enter_tree(plan, cache)


def test_its_files_are_for_this_user_alone_with_any_umask(plan: RunPlan) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in plan.folder.rglob("*") if path.is_file()}
    assert modes == {"code.json": 0o600, "a.csv": 0o600, "x.py": 0o600}


def test_all_that_was_sent_is_removed(plan: RunPlan) -> None:
    tree = plan.folder / CODE
    assert sorted(os.listdir(tree)) == ["data", "latest", "out", "x.py"]
    assert clear_tree(plan) == ""
    assert not tree.exists()


def test_what_the_script_made_in_place_of_a_link_or_a_folder_stays(plan: RunPlan) -> None:
    tree = plan.folder / CODE
    (tree / "latest").unlink()
    (tree / "out").rmdir()
    for name in ("latest", "out"):
        (tree / name).write_text("result")
    assert "files that the script wrote beside itself stay" in clear_tree(plan)
    assert sorted(os.listdir(tree)) == ["latest", "out"]


def test_what_the_script_changed_stays_though_its_size_is_the_same(plan: RunPlan) -> None:
    tree = plan.folder / CODE
    (tree / "x.py").write_bytes(_CONTENT[::-1])
    assert "files that the script wrote beside itself stay" in clear_tree(plan)
    assert [path.name for path in tree.iterdir()] == ["x.py"]


@pytest.mark.parametrize("replaced", ["data", ""], ids=["a folder", "the tree"])
def test_a_link_that_the_script_made_leads_to_nothing_that_is_removed(
    plan: RunPlan, tmp_path: Path, replaced: str
) -> None:
    link, originals = plan.folder / CODE / replaced, tmp_path / "originals"
    files = sorted(os.listdir(link))
    shutil.move(link, originals)
    link.symlink_to(originals)
    assert "stay" in clear_tree(plan)
    assert sorted(os.listdir(originals)) == files
    assert link.is_symlink()
    assert not replaced or os.listdir(plan.folder / CODE) == [replaced]


def test_a_tree_is_named_by_a_digest(plan: RunPlan, tmp_path: Path) -> None:
    shutil.rmtree(plan.folder / CODE)
    with pytest.raises(ClusterError, match="without the id of its code"):
        enter(plan.folder, tmp_path / "cache", "../secret")
