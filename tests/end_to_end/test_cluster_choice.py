"""Commands take the cluster of the folder that they are typed in, and a cluster keeps the spec it was started from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Sandbox

_UNNAMED = "jobs:\n  worker: {tasks: 1}\n"


def spec_in(folder: Path, text: str = _UNNAMED) -> Path:
    """Write the cluster.yaml of a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.yaml").write_text(text)
    return folder


@pytest.mark.slow
def test_each_folder_has_its_own_cluster(sandbox: Sandbox) -> None:
    one, other = spec_in(sandbox.folder / "one"), spec_in(sandbox.folder / "other")
    assert "one is up: 1 task started" in sandbox("up", cwd=one).stdout

    # The only cluster that is up is not this folder's, so that no command touches it.
    for command in (["down"], ["status"], ["restart", "--yes"], ["scale", "worker=2"], ["run", "pi"]):
        error = sandbox(*command, cwd=other, code=3).stderr
        assert error.splitlines() == [
            "error: cluster 'other' is not running",
            "hint: Start it with `tfcluster up`, or choose one that is running with -c: one.",
        ]
    assert "other is up: 1 task started" in sandbox("up", cwd=other).stdout
    assert "other is down" in sandbox("down", cwd=other).stdout
    assert "one  running" in sandbox("status", cwd=one).stdout


@pytest.mark.slow
def test_hints_are_typed_as_they_are_from_another_folder_beside_another_cluster(sandbox: Sandbox) -> None:
    one, other = spec_in(sandbox.folder / "one"), spec_in(sandbox.folder / "other")
    for folder in (one, other):
        sandbox("up", cwd=folder)
    elsewhere = sandbox.folder / "elsewhere"
    elsewhere.mkdir()

    error = sandbox("cancel", "-c", "one", "pi-0000", cwd=elsewhere, code=2).stderr
    assert error.splitlines()[-1] == "hint: `tfcluster runs -c one` lists the runs."
    assert sandbox("runs", "-c", "one", cwd=elsewhere).stderr == ""
    error = sandbox("cancel", "pi-0000", cwd=one, code=2).stderr
    assert error.splitlines()[-1] == "hint: `tfcluster runs` lists the runs."
    error = sandbox("status", cwd=elsewhere, code=3, env={"TFCLUSTER_CLUSTER": "nosuch"}).stderr
    assert error.splitlines()[-1].endswith(" TFCLUSTER_CLUSTER is set to 'nosuch'.")

    hosts = "a: {address: 192.0.2.1, connect: 'false'}, b: {address: 192.0.2.2, connect: 'false'}"
    third = spec_in(sandbox.folder / "a third", f"hosts: {{{hosts}}}\njobs: {{worker: {{tasks: 2}}}}\n")
    third /= "cluster.yaml"
    error = sandbox("up", third, cwd=elsewhere, code=5).stderr
    assert error.splitlines()[-1] == f"hint: `tfcluster doctor '{third}'` runs the same checks by itself."
    stopped = sandbox("down", "--all", env={"TFCLUSTER_CLUSTER": "nosuch"}).stdout
    assert [line.partition(" ")[0] for line in stopped.splitlines()] == ["one", "other"]


@pytest.mark.slow
def test_a_folder_of_the_same_name_elsewhere(sandbox: Sandbox) -> None:
    mine, theirs = spec_in(sandbox.folder / "a" / "lab"), spec_in(sandbox.folder / "b" / "lab")
    sandbox("up", cwd=mine)
    error = sandbox("down", cwd=theirs, code=3).stderr
    assert f"the cluster 'lab' that runs was started from {mine}/cluster.yaml" in error
    error = sandbox("up", "--yes", cwd=theirs, code=2).stderr
    assert f"was started from {mine}/cluster.yaml, not from {theirs}/cluster.yaml: nothing was changed" in error
    assert "--replace-spec" in error

    # Told to, `up` changes the cluster to the other spec, whose it is from then on.
    assert "no task was changed" in sandbox("up", "--replace-spec", cwd=theirs).stdout
    assert "nothing changed" in sandbox("up", cwd=theirs).stdout
    assert "--replace-spec" in sandbox("up", cwd=mine, code=2).stderr
    sandbox("down", cwd=theirs)
    assert sandbox.leftovers() == []
    assert not list(sandbox.folder.glob("state/tfcluster/*/spec")), "nor the record of the spec"


@pytest.mark.slow
def test_a_spec_is_the_same_by_whatever_path_and_name(sandbox: Sandbox) -> None:
    lab = spec_in(sandbox.folder / "lab")
    (sandbox.folder / "link").symlink_to(lab)
    sandbox("up", cwd=lab)
    for path in ("lab/cluster.yaml", "./lab/../lab/cluster.yaml"):
        assert "lab is up already" in sandbox("up", path).stdout
    assert "lab  running" in sandbox("status", cwd=sandbox.folder / "link").stdout

    spec = spec_in(lab, f"name: new\n{_UNNAMED}") / "cluster.yaml"
    warning = (
        f"warning: cluster 'lab', which was started from {spec} before its name changed, is still running; "
        "`tfcluster down -c lab` stops it"
    )
    assert warning in sandbox("status", cwd=lab, code=3).stderr.splitlines()
    assert warning in sandbox("up", cwd=lab).stderr.splitlines()
    assert "lab is down" in sandbox("down", "-c", "lab").stdout
    assert "warning: cluster" not in sandbox("up", cwd=lab).stderr
