"""Which cluster a command operates on: -c, else the only one that is up, else ./cluster.yaml; or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster.client.cluster import resolve_cluster
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import journal_path


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bring_up(*clusters: str) -> None:
    for cluster in clusters:
        path = journal_path(cluster)
        path.parent.mkdir(parents=True)
        path.touch()


def own_spec(folder: Path, name: str) -> None:
    (folder / "cluster.yaml").write_text(f"name: {name}\njobs:\n  worker: {{tasks: 1}}\n")


def test_a_name_is_taken_as_it_is(nowhere: Path) -> None:
    bring_up("one", "two")
    own_spec(nowhere, "three")
    assert resolve_cluster("four").name == "four"


def test_the_only_one_that_is_up(nowhere: Path) -> None:
    bring_up("one")
    own_spec(nowhere, "three")
    assert resolve_cluster(None).name == "one"


def test_the_cluster_of_the_spec_in_the_folder_if_none_or_it_too_is_up(nowhere: Path) -> None:
    own_spec(nowhere, "mine")
    assert resolve_cluster(None).name == "mine"
    bring_up("mine", "other")
    assert resolve_cluster(None).name == "mine"


def test_several_are_listed(nowhere: Path) -> None:
    bring_up("two", "one")
    own_spec(nowhere, "three")
    with pytest.raises(ClusterError) as caught:
        resolve_cluster(None)
    assert caught.value.message == "several clusters are running: one, two"
    assert caught.value.exit_code is ExitCode.USAGE


def test_none(nowhere: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        resolve_cluster("")
    assert caught.value.exit_code is ExitCode.NOT_RUNNING
