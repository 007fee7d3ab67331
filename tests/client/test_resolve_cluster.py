"""Which cluster a command operates on: -c, else that of ./cluster.yaml, else the only one that is up; or an error.

TFCLUSTER_CLUSTER has the place of -c where that is not given. The registry has the hosts of clusters.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfcluster.cli.main import cli
from tfcluster.client.cluster import Cluster, record_spec, recorded_spec, register, unregister
from tfcluster.client.down import clusters_to_stop
from tfcluster.client.resolve import check_source, find_cluster, resolve_cluster
from tfcluster.connection import ClusterConnection
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import cluster_registry_path, journal_path, running_clusters, state_folder


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


def test_the_environment_names_it_unless_the_command_line_or_the_program_does(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up("one")
    own_spec(nowhere, "three")
    monkeypatch.setenv("TFCLUSTER_CLUSTER", "four")
    for arguments, chosen in ((["status"], "four"), (["status", "-c", "five"], "five")):
        error = CliRunner().invoke(cli, arguments).exception
        assert isinstance(error, ClusterError)
        assert error.message == f"cluster '{chosen}' is not running"
    for arguments, chosen in (([], "four"), (["five"], "five")):
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
    bring_up(*{"mine"} - {*running})
    (nowhere / "cluster.yaml").write_text("name: mine\njobs: {worker: {task: 1}}\n")  # it is being edited
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


def test_down_stops_the_cluster_of_a_spec_wherever_it_is(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up("one", "two")
    own_spec(nowhere, "three")
    spec = nowhere / "other.yaml"
    spec.write_text("name: two\njobs: {worker: {tasks: 1}}\n")
    monkeypatch.setenv("TFCLUSTER_CLUSTER", "one")
    assert [each.name for each in clusters_to_stop(None, False, spec)] == ["two"]
    arguments = ["down", "other.yaml"]
    for more in (["-c", "one"], ["--all"]):
        error = CliRunner().invoke(cli, [*arguments, *more]).exception
        assert isinstance(error, ClusterError)
        assert error.message == "give one of SPEC, -c and --all"
    error = CliRunner().invoke(cli, ["down", "two"]).exception
    assert isinstance(error, ClusterError)
    assert (error.message, error.exit_code) == ("there is no file 'two'", ExitCode.USAGE)
    assert "`-c two`" in error.hint


def test_after_a_rename_the_old_cluster_is_named(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_spec(nowhere, "new")
    bring_up("old", "other")
    record_spec("old", str(nowhere / "cluster.yaml"))
    assert resolve_cluster(None).name == "new"
    assert "cluster 'old'" in (warning := capsys.readouterr().err)
    assert "`tfcluster down -c old` stops it" in warning
    assert "other" not in warning


def test_several_are_listed_and_none_is_an_error() -> None:
    with pytest.raises(ClusterError) as caught:
        resolve_cluster("")
    assert caught.value.exit_code is ExitCode.NOT_RUNNING
    bring_up("two", "one")
    with pytest.raises(ClusterError) as caught:
        resolve_cluster(None)
    assert caught.value.message == "several clusters are running: one, two"
    assert caught.value.exit_code is ExitCode.USAGE


ALPHA = Host("alpha", "10.0.0.1", "tf@alpha", "python3", "/scratch", {"A": "b"}, ("true",))
BETA = Host("beta", "10.0.0.2", "beta")


def test_a_registered_cluster_has_its_hosts() -> None:
    register(Cluster("far", (ALPHA, BETA), "beta"))
    assert running_clusters() == ["far"]
    for cluster in (resolve_cluster(None), resolve_cluster("far")):
        assert list(cluster.hosts.values()) == [ALPHA, BETA]
        assert (cluster.name, cluster.head, cluster.is_local) == ("far", "beta", False)
    assert stat.S_IMODE(cluster_registry_path("far").stat().st_mode) == 0o600


def test_the_spec_in_the_folder_names_the_hosts_of_its_cluster_unless_it_is_registered() -> None:
    Path("cluster.yaml").write_text("name: far\nhosts: [alpha, beta]\njobs:\n  worker: {tasks: 2}\n")
    for cluster in (resolve_cluster(None), resolve_cluster("far")):
        assert (list(cluster.hosts), cluster.head) == (["alpha", "beta"], "alpha")
    assert list(find_cluster("another").hosts) == ["localhost"]
    register(Cluster("far", (BETA,), "beta"))
    assert list(find_cluster("far").hosts) == ["beta"]
    assert list(resolve_cluster(None).hosts) == ["beta"]


def test_the_command_of_connect_is_not_run_for_a_cluster_that_up_has_not_recorded() -> None:
    Path("cluster.yaml").write_text(
        "name: far\nhosts: {alpha: {connect: docker exec -i alpha}}\njobs: {worker: {tasks: 1}}\n"
    )
    for name in (None, "far"):
        with pytest.raises(ClusterError, match="of `connect:` of host 'alpha' is not run") as caught:
            resolve_cluster(name)
        assert caught.value.exit_code is ExitCode.NOT_RUNNING


def test_no_host_is_contacted_that_variables_name_unless_up_has_recorded_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    jobs = "jobs: {worker: {tasks: '${N}', env: {A: '${N}'}}}\n"
    for place in ("name: far\nhosts: {alpha: {ssh: 'x.${TOKEN}.example'}}\n", "name: '${TOKEN}'\nhosts: [alpha]\n"):
        Path("cluster.yaml").write_text(jobs + place)
        with pytest.raises(ClusterError, match="host 'alpha' is not contacted, as variables say where it is") as caught:
            resolve_cluster(None)
        assert caught.value.exit_code is ExitCode.NOT_RUNNING
    Path("cluster.yaml").write_text(jobs + "name: far\nhosts: [alpha]\n")
    assert list(resolve_cluster(None).hosts) == list(find_cluster("far").hosts) == ["alpha"]
    Path("cluster.yaml").write_text(jobs + "name: '${TOKEN}'\n")
    assert resolve_cluster(None).is_local


def test_a_cluster_without_an_entry_is_on_this_machine_whatever_spec_is_in_the_folder() -> None:
    for text in ("jobs: {a: {tasks: 1}}", "jobs: ["):
        Path("cluster.yaml").write_text(text)
        cluster = find_cluster("near")
        assert (list(cluster.hosts), cluster.is_local) == (["localhost"], True)


def test_logs_remain_when_a_cluster_is_removed_from_the_registry() -> None:
    register(Cluster("far", (ALPHA,), "alpha"))
    unregister("far")
    unregister("far")
    assert not cluster_registry_path("far").parent.exists()
    state_folder("far").mkdir(parents=True)
    register(Cluster("far", (ALPHA,), "alpha"))
    register(Cluster("far"))  # on this machine only: it has no entry
    assert not cluster_registry_path("far").exists()
    register(Cluster("far", (ALPHA,), "alpha"))
    unregister("far")
    assert state_folder("far").exists()
    assert running_clusters() == []


@pytest.mark.parametrize("text", ["", "{}", "[]", 100_000 * "[", '{"hosts": [{}], "head": "a"}'])
def test_a_damaged_entry_is_an_error_with_its_path(text: str) -> None:
    cluster_registry_path("far").parent.mkdir(parents=True)
    cluster_registry_path("far").write_text(text)
    with pytest.raises(ClusterError, match="cannot read the hosts of cluster 'far'") as caught:
        find_cluster("far")
    assert str(cluster_registry_path("far")) in caught.value.message


@pytest.mark.parametrize("text", ["{", '{"format": 99, "tfcluster": "9.9.9"}'])
def test_an_entry_that_cannot_be_read_is_neither_replaced_nor_removed(text: str) -> None:
    cluster_registry_path("far").parent.mkdir(parents=True)
    cluster_registry_path("far").write_text(text)
    for cluster in (Cluster("far", (ALPHA,), "alpha"), Cluster("far"), None):
        with pytest.raises(ClusterError) as caught:
            unregister("far") if cluster is None else register(cluster)
        assert ("written by tfcluster 9.9.9, which is newer" in caught.value.message) == ("format" in text)
        assert cluster_registry_path("far").read_text() == text


def test_a_running_cluster_is_not_changed_by_another_spec() -> None:
    bring_up("near")
    record_spec("near", "/a/cluster.yaml")
    check_source("near", "/a/cluster.yaml")
    with pytest.raises(ClusterError, match=r"was started from /a/cluster\.yaml, not from /b") as caught:
        check_source("near", "/b/cluster.yaml")
    assert caught.value.exit_code is ExitCode.USAGE
    assert "--replace-spec" in caught.value.hint


def test_the_spec_that_a_cluster_was_started_from_is_recorded_until_it_is_removed() -> None:
    assert recorded_spec("near") is None
    record_spec("near", "/a/cluster.yaml")
    register(Cluster("near"))
    assert recorded_spec("near") == "/a/cluster.yaml"
    assert running_clusters() == [], "a record alone is no cluster"
    unregister("near")
    assert recorded_spec("near") is None
    assert not cluster_registry_path("near").parent.exists()
