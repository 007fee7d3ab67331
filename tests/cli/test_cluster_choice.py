"""Which cluster a command operates on: -c, else that of ./cluster.yaml, else the only one that is up; or an error.

A cluster keeps the spec that it was started from. Hints are typed as they are, wherever the command was typed.
"""

from __future__ import annotations

import re

import pytest

from tests.project import Outcome, Project
from tfcluster.client.cluster import Cluster, register
from tfcluster.connection import ClusterConnection
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, usage_error
from tfcluster.paths import cluster_registry_path
from tfcluster.protocol.api.cluster import ApplyRequest, DownRequest
from tfcluster.protocol.api.runs import CancelRequest

UNNAMED = "jobs: {worker: {tasks: 1}}\n"


def named(name: str) -> str:
    return f"name: {name}\n{UNNAMED}"


def bring_up(project: Project, *clusters: str) -> None:
    """Have clusters run that were started from other folders."""
    for cluster in clusters:
        project.bring_up(named(cluster), f"of {cluster}/cluster.yaml")


def chosen(outcome: Outcome) -> str:
    """Return the name of the cluster that a `status` was about, whether or not it runs."""
    return outcome.stdout.partition(" ")[0] if outcome.code == 0 else outcome.stderr.split("'")[1]


@pytest.mark.parametrize(
    ("running", "here", "line", "variable", "expected"),
    [
        ("one two", "three", "status -c four", "", "four"),
        ("one", "three", "status", "four", "four"),
        ("one", "three", "status -c five", "four", "five"),
        ("one", "", "status", "", "one"),
        ("", "mine", "status", "", "mine"),
        ("other", "mine", "status", "", "mine"),
        ("other another", "mine", "status", "", "mine"),
        ("mine", "mine", "status", "", "mine"),
        ("mine other", "mine", "status", "", "mine"),
    ],
)
def test_the_cluster_that_is_meant(
    project: Project, running: str, here: str, line: str, variable: str, expected: str
) -> None:
    bring_up(project, *running.split())
    if here:
        project.file("cluster.yaml", named(here))
    assert chosen(project.run(line, env={"TFCLUSTER_CLUSTER": variable})) == expected


def test_a_program_names_it_as_the_command_line_does(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFCLUSTER_CLUSTER", "four")
    for arguments, expected in (([], "four"), (["five"], "five")):
        with pytest.raises(ClusterError, match=f"^cluster '{expected}' is not running\n"):
            ClusterConnection(*arguments)


def test_several_are_listed_and_none_is_an_error(project: Project) -> None:
    assert project.run("status") == Outcome(
        3,
        "",
        "error: no cluster is running, and there is no cluster.yaml here\n"
        "hint: Start one with `tfcluster up SPEC`; `tfcluster init` writes a commented cluster.yaml.\n",
    )
    bring_up(project, "two", "one")
    assert project.run("events") == Outcome(
        2,
        "",
        "error: several clusters are running: one, two\nhint: Choose one with -c NAME; `tfcluster ls` shows them.\n",
    )


@pytest.mark.parametrize(
    "text", ["name: [", "name: 5", "jobs: {worker: {task: 1}}", "name: a/b\njobs: {a: {tasks: 1}}"]
)
def test_a_spec_without_a_valid_name_is_an_error_and_no_other_cluster_is_chosen(project: Project, text: str) -> None:
    bring_up(project, "one")
    project.file("cluster.yaml", text)
    outcome = project.run("status")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert re.match(r"error: cluster\.yaml:\d:\d+: ", outcome.stderr)


def test_a_spec_that_is_being_edited_names_its_cluster(project: Project) -> None:
    project.bring_up(named("mine"))
    project.file("cluster.yaml", "name: mine\njobs: {worker: {task: 1}}\n")
    assert chosen(project.run("status")) == "mine"


@pytest.mark.parametrize("line", ["down", "status", "restart --yes", "scale worker=2", "run pi", "events"])
def test_the_only_cluster_that_is_up_is_left_alone_in_the_folder_of_another_one(project: Project, line: str) -> None:
    bring_up(project, "one")
    project.file("other/cluster.yaml", UNNAMED)
    outcome = project.run(line, cwd="other")
    error = "error: cluster 'other' is not running"
    assert (outcome.code, outcome.stdout, outcome.stderr[: len(error)]) == (3, "", error)
    assert project.agent.requests == []
    if line != "events":
        assert outcome.stderr.splitlines()[1:] == [
            "hint: Start it with `tfcluster up`, or choose one that is running with -c: one."
        ]


def test_a_folder_of_the_same_name_elsewhere(project: Project) -> None:
    project.bring_up(UNNAMED, "a/lab/cluster.yaml")
    mine, theirs = project.folder / "a/lab", project.file("b/lab/cluster.yaml", UNNAMED).parent
    assert chosen(project.run("status", cwd=mine)) == "lab"
    assert project.run("down", cwd=theirs) == Outcome(
        3,
        "",
        f"error: the cluster of cluster.yaml is not running: the cluster 'lab' that runs was started from "
        f"{mine}/cluster.yaml\n"
        "hint: Use that one with -c lab; or give cluster.yaml its own `name:` and start it with `tfcluster up`.\n",
    )
    for line in ("up --yes", "up --dry-run"):
        assert project.run(line, cwd=theirs) == Outcome(
            2,
            "",
            f"error: cluster 'lab' is running and was started from {mine}/cluster.yaml, not from "
            f"{theirs}/cluster.yaml: nothing was changed\n"
            "hint: Give this one another `name:` to start a separate cluster, or add --replace-spec to change the "
            "running cluster to this spec.\n",
        )
    assert project.agent.asked(ApplyRequest) == []
    # Told to, `up` changes the cluster to the other spec, whose it is from then on.
    assert "no task was changed" in project.run("up --replace-spec", cwd=theirs).stdout
    assert project.run("up", cwd=theirs) == Outcome(0, "lab is up already: nothing changed\n", "")
    assert "--replace-spec" in project.run("up", cwd=mine).stderr
    assert project.run("down", cwd=theirs).code == 0
    assert not list(project.folder.parent.glob("**/tfcluster/lab/spec")), "nor the record of the spec"


def test_a_name_in_the_file_names_the_cluster_that_another_file_has_started(project: Project) -> None:
    project.bring_up(UNNAMED, "a/lab/cluster.yaml")
    project.file("b/lab/cluster.yaml", named("lab"))
    assert chosen(project.run("status", cwd="b/lab")) == "lab"


def test_a_spec_is_the_same_by_whatever_path_and_name(project: Project) -> None:
    project.bring_up(UNNAMED, "lab/cluster.yaml")
    (project.folder / "link").symlink_to("lab")
    for path in ("lab/cluster.yaml", "./lab/../lab/cluster.yaml"):
        assert project.run(f"up {path}") == Outcome(0, "lab is up already: nothing changed\n", "")
    assert chosen(project.run("status", cwd="link")) == "lab"

    bring_up(project, "unrelated")
    spec = project.file("lab/cluster.yaml", named("new"))
    warning = (
        f"warning: cluster 'lab', which was started from {spec} before its name changed, is still running; "
        "`tfcluster down -c lab` stops it\n"
    )
    for line, code in (("status", 3), ("up", 0)):
        outcome = project.run(line, cwd="lab")
        assert outcome.code == code
        assert outcome.stderr.startswith(warning)
        assert "unrelated" not in outcome.stderr.partition("\n")[0]
    assert project.run("down -c lab").stdout == "lab is down: 1 task stopped\n"
    assert "warning" not in project.run("up", cwd="lab").stderr


def test_hints_are_typed_as_they_are_from_another_folder_beside_another_cluster(project: Project) -> None:
    bring_up(project, "one", "other")

    def hint(line: str, cwd: str = "", variable: str = "") -> str:
        return project.run(line, cwd=cwd, env={"TFCLUSTER_CLUSTER": variable}).stderr.splitlines()[-1]

    project.file("elsewhere/readme")
    project.agent.answer(CancelRequest, [usage_error("no run 'pi-0000'", "`tfcluster runs` lists the runs.")])
    assert hint("cancel -c one pi-0000", "elsewhere") == "hint: `tfcluster runs -c one` lists the runs."
    assert hint("cancel pi-0000", "of one") == "hint: `tfcluster runs` lists the runs."
    assert hint("status", "elsewhere", "nosuch").endswith(" TFCLUSTER_CLUSTER is set to 'nosuch'.")
    third = project.file("a third/cluster.yaml", "hosts: [a, b]\njobs: {worker: {tasks: 2}}\n")
    project.agent.away = {"a", "b"}
    assert hint(f"up '{third}'", "elsewhere") == f"hint: `tfcluster doctor '{third}'` runs the same checks by itself."


def test_down_stops_the_cluster_of_a_spec_or_all_whatever_the_variable_names(project: Project) -> None:
    bring_up(project, "one", "two", "four")
    project.file("cluster.yaml", named("three"))
    variable = {"TFCLUSTER_CLUSTER": "one"}
    assert project.run("down 'of two/cluster.yaml'", env=variable).stdout == "two is down: 1 task stopped\n"
    for more in ("-c one", "--all"):
        outcome = project.run(f"down 'of one/cluster.yaml' {more}")
        assert outcome[::2] == (2, "error: give one of SPEC, -c and --all\n")
    assert project.run("down two") == Outcome(
        2, "", "error: there is no file 'two'\nhint: A cluster has its name after -c: `-c two`.\n"
    )
    assert project.run("down --all -c x")[::2] == (2, "error: give -c or --all, not both\n")
    assert len(project.agent.asked(DownRequest)) == 1
    assert (
        project.run("down --all", env=variable).stdout == "four is down: 1 task stopped\none is down: 1 task stopped\n"
    )


FAR = "name: far\nhosts: [alpha, beta]\njobs: {worker: {tasks: 2}}\n"


def test_the_spec_in_the_folder_names_the_hosts_of_its_cluster_unless_it_is_registered(project: Project) -> None:
    project.file("cluster.yaml", FAR)

    def contacted(line: str) -> set[str]:
        project.agent.contacted.clear()
        project.run(line)
        return {*project.agent.contacted}

    assert contacted("status") == contacted("status -c far") == {"alpha", "beta"}
    assert contacted("status -c another") == set()
    register(Cluster("far", (Host("beta", "10.0.0.2", "beta"),), "beta"))
    assert contacted("status") == contacted("status -c far") == {"beta"}


@pytest.mark.parametrize("text", [UNNAMED, "jobs: [", FAR])
def test_a_cluster_without_an_entry_is_on_this_machine_whatever_spec_is_in_the_folder(
    project: Project, text: str
) -> None:
    project.file("cluster.yaml", text)
    assert project.run("status -c near").stderr.startswith("error: cluster 'near' is not running\n")
    assert project.agent.contacted == set()


@pytest.mark.parametrize("line", ["status", "status -c far", "down"])
def test_the_command_of_connect_is_not_run_for_a_cluster_that_up_has_not_recorded(project: Project, line: str) -> None:
    project.file("cluster.yaml", "name: far\nhosts: {alpha: {connect: docker exec -i alpha}}\n" + UNNAMED)
    assert project.run(line) == Outcome(
        3,
        "",
        "error: cluster 'far' is not running, or was not started from this machine: then the command of `connect:` of "
        "host 'alpha' is not run\nhint: `tfcluster up` does that, and starts the cluster or finds it.\n",
    )
    assert project.agent.contacted == set()


@pytest.mark.parametrize(
    ("place", "contacted"),
    [
        ("name: far\nhosts: {alpha: {ssh: 'x.${TOKEN}.example'}}\n", set()),
        ("name: '${TOKEN}'\nhosts: [alpha]\n", set()),
        ("name: far\nhosts: [alpha]\n", {"alpha"}),
    ],
)
def test_no_host_is_contacted_that_variables_name_and_other_variables_need_not_be_set(
    project: Project, place: str, contacted: set[str]
) -> None:
    project.file("cluster.yaml", f"{place}jobs: {{worker: {{tasks: '${{N}}', env: {{A: '${{N}}'}}}}}}\n")
    outcome = project.run("status", env={"TOKEN": "hunter2"})
    assert outcome.code == 3
    assert ("host 'alpha' is not contacted, as variables say where it is" in outcome.stderr) is (not contacted)
    assert project.agent.contacted == contacted


@pytest.mark.parametrize("text", ["", "{}", "[]", 100_000 * "[", '{"hosts": [{}], "head": "a"}'])
def test_a_damaged_entry_of_the_registry_is_an_error_with_its_path(project: Project, text: str) -> None:
    path = cluster_registry_path("far")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    outcome = project.run("status -c far")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith(f"error: {path}: cannot read the hosts of cluster 'far': ")
    assert path.read_text() == text


@pytest.mark.parametrize("line", ["status -c far", "up", "down -c far", "down --all --yes", "runs -c far"])
def test_an_entry_of_the_registry_that_a_later_release_has_written_stays(project: Project, line: str) -> None:
    project.file("cluster.yaml", "name: far\nhosts: [alpha]\njobs: {worker: {tasks: 1}}\n")
    path = cluster_registry_path("far")
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 99, "tfcluster": "9.9.9"}')
    outcome = project.run(line)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert f"{path} was written by tfcluster 9.9.9" in outcome.stderr
    assert path.read_text() == '{"format": 99, "tfcluster": "9.9.9"}'
    assert project.agent.contacted == set()
