"""Which cluster a command operates on: -c, else that of ./cluster.yaml, else the only one that is up; or an error.

TFCLUSTER_CLUSTER has the place of -c where that is not given.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tfcluster.cli.main import cli
from tfcluster.client.cluster import record_spec
from tfcluster.client.resolve import resolve_cluster
from tfcluster.connection import ClusterConnection
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


@pytest.mark.parametrize(("arguments", "chosen"), [([], "four"), (["-c", "five"], "five")])
def test_the_environment_names_it_unless_the_command_line_does(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], chosen: str
) -> None:
    bring_up("one")
    own_spec(nowhere, "three")
    monkeypatch.setenv("TFCLUSTER_CLUSTER", "four")
    error = CliRunner().invoke(cli, ["status", *arguments]).exception
    assert isinstance(error, ClusterError)
    assert error.message == f"cluster '{chosen}' is not running"


@pytest.mark.parametrize(("arguments", "chosen"), [([], "four"), (["five"], "five")])
def test_the_environment_names_it_for_programs_too(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], chosen: str
) -> None:
    bring_up("one")
    own_spec(nowhere, "three")
    monkeypatch.setenv("TFCLUSTER_CLUSTER", "four")
    with pytest.raises(ClusterError, match=f"^cluster '{chosen}' is not running\n"):
        ClusterConnection(*arguments)


def test_the_only_one_that_is_up() -> None:
    bring_up("one")
    assert resolve_cluster(None).name == "one"


@pytest.mark.parametrize("running", [[], ["other"], ["other", "another"], ["mine"], ["mine", "other"]])
def test_the_cluster_of_the_spec_in_the_folder_and_no_other(nowhere: Path, running: list[str]) -> None:
    own_spec(nowhere, "mine")
    bring_up(*running)
    assert resolve_cluster(None).name == "mine"


def test_a_spec_that_is_being_edited_still_names_its_cluster(nowhere: Path) -> None:
    (nowhere / "cluster.yaml").write_text("name: mine\njobs: {worker: {task: 1}}\n")
    bring_up("mine")
    assert resolve_cluster(None).name == "mine"


@pytest.mark.parametrize(
    "text", ["name: [", "name: 5", "jobs: {worker: {task: 1}}", "name: a/b\njobs: {a: {tasks: 1}}"]
)
def test_a_spec_without_a_valid_name_is_an_error_and_no_other_cluster_is_chosen(nowhere: Path, text: str) -> None:
    (nowhere / "cluster.yaml").write_text(text)
    bring_up("one")
    with pytest.raises(ClusterError, match=r"cluster\.yaml:\d:") as caught:
        resolve_cluster(None)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_folder_of_the_same_name_has_another_cluster(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for parent in ("a", "b"):
        (nowhere / parent / "lab").mkdir(parents=True)
        (nowhere / parent / "lab" / "cluster.yaml").write_text("jobs: {worker: {tasks: 1}}\n")
    bring_up("lab")
    record_spec("lab", str(nowhere / "a" / "lab" / "cluster.yaml"))
    monkeypatch.chdir(nowhere / "a" / "lab")
    assert resolve_cluster(None).name == "lab"
    monkeypatch.chdir(nowhere / "b" / "lab")
    with pytest.raises(
        ClusterError, match=r"is not running: the cluster 'lab' that runs was started from .*a/lab"
    ) as caught:
        resolve_cluster(None)
    assert caught.value.exit_code is ExitCode.NOT_RUNNING
    own_spec(nowhere / "b" / "lab", "lab")
    assert resolve_cluster(None).name == "lab", "the file names it, as -c would"


def test_after_a_rename_the_old_cluster_is_named(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_spec(nowhere, "new")
    bring_up("old", "other")
    record_spec("old", str(nowhere / "cluster.yaml"))
    assert resolve_cluster(None).name == "new"
    assert "cluster 'old'" in (warning := capsys.readouterr().err)
    assert "`tfcluster down -c old` stops it" in warning
    assert "other" not in warning


def test_several_are_listed() -> None:
    bring_up("two", "one")
    with pytest.raises(ClusterError) as caught:
        resolve_cluster(None)
    assert caught.value.message == "several clusters are running: one, two"
    assert caught.value.exit_code is ExitCode.USAGE


def test_none(nowhere: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        resolve_cluster("")
    assert caught.value.exit_code is ExitCode.NOT_RUNNING
