"""`up`, `scale` and `restart`: the plan, what they ask before something is lost, and what they say at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tests.core.clusters import topology_of
from tests.fake_agent import WAIT
from tests.project import Outcome, Project, Stream
from tfcluster import settings
from tfcluster.cli import up
from tfcluster.core.hosts import OtherAccounts
from tfcluster.core.plan import ActionKind, HostStep, PlannedAction
from tfcluster.core.states import RunState, TaskState
from tfcluster.core.status import LastExit
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import (
    Allocation,
    ApplyReply,
    ApplyRequest,
    Preparation,
    PrepareRequest,
    RestartRequest,
)
from tfcluster.protocol.api.logs import LogLine
from tfcluster.protocol.api.runs import FailingRunsReply, FailingRunsRequest, RunSummary

DEMO = "name: demo\njobs: {ps: {tasks: 1}, worker: {tasks: 2}}\n"
TABLE = """\
TASK      ADDRESS         STATE
ps:0      localhost:2222  ready
worker:0  localhost:2223  ready
worker:1  localhost:2224  ready
"""


def ends_with(outcome: Outcome, stdout: str, code: int = 0) -> bool:
    """Whether a command has ended like this, in some time."""
    return outcome.code == code and re.sub(r" in \d+\.\d\d s\n$", " in N s\n", outcome.stdout).endswith(stdout)


def test_the_spec_of_init_comes_up_and_goes_down(project: Project) -> None:
    """And a dry run applies nothing."""
    assert project.run("init").code == 0
    valid = "cluster.yaml is valid: cluster 'project', 1 ps, 2 worker\n"
    assert project.run("validate") == Outcome(0, valid, "")
    plan = (
        "OPERATION  TASK      HOST       ADDRESS         CAUSE\n"
        "start      ps:0      localhost  localhost:2222  new\n"
        "start      worker:0  localhost  localhost:2223  new\n"
        "start      worker:1  localhost  localhost:2224  new\n"
    )
    assert project.run("up --dry-run") == Outcome(0, plan, "")
    assert project.agent.asked(ApplyRequest) == []
    assert ends_with(project.run("up"), f"{TABLE}project is up: 3 tasks started in N s\n")
    assert project.run("up") == Outcome(0, "project is up already: nothing changed\n", "")
    assert project.run("up --dry-run") == Outcome(0, "project is up already: nothing to do\n", "")
    assert project.run("down").stdout == "project is down: 3 tasks stopped\n"


def test_a_cluster_in_one_line_has_the_addresses_that_it_names(project: Project) -> None:
    outcome = project.run("up --cluster-spec 'master|localhost:2190,worker|localhost:2191;localhost:2192'")
    assert re.findall(r"(\S+:\d) +(localhost:\d+)", outcome.stdout) == [
        ("master:0", "localhost:2190"),
        ("worker:0", "localhost:2191"),
        ("worker:1", "localhost:2192"),
    ]


@pytest.mark.parametrize("place", ["ssh: gamma", "connect: enter", "state: /elsewhere"])
def test_the_name_of_a_host_stays_with_its_machine(project: Project, place: str) -> None:
    spec = "name: two\nhosts: {{beta: {{address: 10.0.0.2{more}}}}}\njobs: {{worker: {{tasks: 1}}}}\n"
    project.bring_up(spec.format(more=""))
    project.file("cluster.yaml", spec.format(more=f", {place}"))
    outcome = project.run("up --replace-spec")
    assert outcome.code == 2
    assert "is up on host beta, but this spec has a different place for that host: " in outcome.stderr
    assert place.replace(":", "") in outcome.stderr.partition(" (the running")[0]
    assert project.agent.asked(ApplyRequest) == []


def test_the_servers_run_in_the_folder_of_the_spec_or_in_the_current_one_if_that_is_no_file(project: Project) -> None:
    project.file("a folder/cluster.yaml", "name: file\njobs: {worker: {tasks: 1}}\n")
    project.file("here/readme")
    project.run("up 'a folder/cluster.yaml'")
    project.run("up --cluster-spec 'worker|localhost'", cwd="here")
    project.run("up /dev/stdin", cwd="here", typed="name: pipe\njobs: {worker: {tasks: 1}}\n")
    folders = [request.topology.folder for request in project.agent.asked(ApplyRequest)]
    assert folders == [f"{project.folder}/{name}" for name in ("a folder", "here", "here")]


LOSS = "stop ps:0 on localhost at localhost:2222: removed; LOST: the variables of ps:0\n"
PLAN_OF_A_LOSS = (
    "OPERATION  TASK  HOST       ADDRESS         CAUSE\n"
    "stop       ps:0  localhost  localhost:2222  removed\n"
    "LOST: the variables of ps:0\n"
)


@pytest.mark.parametrize(
    ("options", "terminal", "typed", "code", "error", "is_applied"),
    [
        (
            *("", False, "y\n", 2),
            f"error: cluster 'demo' would lose the variables of ps:0: nothing was changed\n{LOSS}"
            "hint: Add --yes to do it anyway; `--dry-run` shows the whole plan.\n",
            False,
        ),
        ("-o json", True, "y\n", 2, "error: cluster 'demo' would lose the variables of ps:0", False),
        ("", True, "n\n", 1, "Continue and lose that? [y/N]: error: nothing was changed\n", False),
        ("", True, "y\n", 0, "Continue and lose that? [y/N]: ", True),
        ("--yes", False, "", 0, "", True),
        ("--dry-run", False, "", 0, "", False),
    ],
    ids=["script", "JSON is for programs", "no", "yes", "--yes", "--dry-run"],
)
def test_nothing_is_lost_without_consent(
    project: Project, options: str, terminal: bool, typed: str, code: int, error: str, is_applied: bool
) -> None:
    project.bring_up(DEMO)
    project.file("cluster.yaml", DEMO.replace("ps: {tasks: 1}, ", ""))
    outcome = project.run(f"up {options}", typed=typed, terminal=terminal, env={"NO_COLOR": "1", "TERM": "dumb"})
    assert outcome.code == code
    assert error in outcome.stderr
    assert ("json" in options) or outcome.stdout.startswith(PLAN_OF_A_LOSS)
    assert bool(project.agent.asked(ApplyRequest)) is is_applied


def test_a_scale_that_servers_must_learn_of_names_what_it_loses_and_how_to_avoid_it(project: Project) -> None:
    project.bring_up(DEMO)
    outcome = project.run("scale worker=3")
    assert outcome.code == 2
    assert outcome.stderr == (
        "error: cluster 'demo' would lose the variables of ps:0: nothing was changed\n"
        "restart ps:0 on localhost at localhost:2222: it must know the address of worker:2; "
        "LOST: the variables of ps:0\n"
        "hint: Add --yes to do it anyway; `--dry-run` shows the whole plan. A job that was started with `max: N` in "
        "the spec can grow to N tasks without any restart.\n"
    )
    assert ends_with(project.run("scale worker=1"), "demo is up: 1 task stopped in N s\n")


def test_another_command_that_was_faster_has_the_change_planned_again(project: Project) -> None:
    project.file("cluster.yaml", DEMO)
    project.agent.answer(ApplyRequest, [Reply(ApplyReply("it is up by now"))], project.agent.usual)
    assert ends_with(project.run("up"), f"{TABLE}demo is up: 3 tasks started in N s\n")
    assert len(project.agent.asked(ApplyRequest)) == 2


@pytest.mark.parametrize(
    ("line", "code"), [("up --dry-run", 4), ("scale worker=1 --dry-run", 4), ("doctor", 1), ("status", 0)]
)
def test_a_check_starts_no_agent_where_one_has_died(project: Project, line: str, code: int) -> None:
    project.bring_up(DEMO)
    project.agent.stop()
    project.patch.setattr(settings, "DRY_RUN_CONNECT_SECONDS", 0.05)
    outcome = project.run(line)
    assert outcome.code == code
    said = "cluster 'demo' is up, but its agent has died: not checked" in outcome.stdout + outcome.stderr
    assert said is bool(code)
    assert bool(project.agent.requests) is (not code)


def test_tasks_that_are_not_ready_in_time_are_named_with_what_they_have_printed(project: Project) -> None:
    project.bring_up(DEMO)
    project.agent.states = {"worker:1": TaskState.STARTING}
    project.agent.logs = [LogLine("worker:1", 1.0, "loading", None)]
    project.patch.setattr(settings, "LATE_TASK_SECONDS", 0.05)
    for line, code, within in (("up", 4, "2"), ("wait --ready", 124, r"[01]\.\d+")):
        outcome = project.run(f"{line} --timeout 2")  # a busy machine needs some of it
        assert outcome.code == code
        assert re.search(
            rf"error: cluster 'demo' is not ready: 2 of 3 tasks are ready within {within} s\n"
            r"worker:1 at localhost:2224 on localhost is starting\n  loading\n",
            outcome.stderr,
        )
        assert outcome.stderr.startswith("demo: 2 of 3 tasks ready, waiting for worker:1\nworker:1 | loading\n") is (
            line == "up"
        )


def test_a_task_that_has_failed_is_named_with_its_exit_and_the_end_of_its_log(project: Project) -> None:
    project.bring_up(DEMO)
    project.agent.states = {"worker:1": TaskState.FAILED}
    project.agent.last_exit = LastExit("SIGSEGV", 0.0, "no CUDA", ("loading [/usr/lib]", "Segmentation fault"))
    outcome = project.run("wait --ready")
    assert outcome == Outcome(
        4,
        "",
        "error: cluster 'demo' is not ready: 2 of 3 tasks are ready\n"
        f"worker:1 at localhost:2224 on localhost is failed ({project.agent.last_exit}): no CUDA\n"
        "  loading [/usr/lib]\n"
        "  Segmentation fault\n"
        "hint: `tfcluster up` tries the failed tasks again, `tfcluster down` stops the rest, `tfcluster logs TASK` "
        "shows a whole log.\n",
    )
    assert project.run("wait --ready ps") == Outcome(0, "demo: 1 task ready\n", "")


def test_the_note_on_other_accounts_is_repeated_after_a_day(project: Project) -> None:
    def prepare(request: PrepareRequest, host: str) -> Iterable[object]:
        tasks = request.topology.tasks
        allocation = Allocation({task.name: 2222 + number for number, task in enumerate(tasks)}, {})
        return Preparation("2.21.0", allocation, (), OtherAccounts("me", 1, ("anna",))), WAIT

    project.file("cluster.yaml", DEMO)
    project.agent.answer(PrepareRequest, prepare)
    note = (
        "note: this machine: 1 other account can log in there (anna): it can connect to this cluster's servers through "
        "127.0.0.1 and run code as me. `network: private` in the spec keeps them out.\n"
    )
    assert project.run("up --dry-run").stderr == note
    assert project.run("up").stderr == note
    assert "note:" not in project.run("up").stderr, "no server was started"
    project.run("down")
    assert "note:" not in project.run("up").stderr, "it was said today"
    project.run("down")
    project.patch.setattr(settings, "NOTE_REPEAT_SECONDS", 0)
    assert project.run("up").stderr == note


@pytest.mark.parametrize(
    ("line", "terminal", "typed", "code", "error", "restarted"),
    [
        (
            *("restart", False, "y\n", 2),
            "error: cluster 'demo' would lose the variables of ps:0: nothing was restarted\n"
            "hint: Add --yes to restart anyway.\n",
            [],
        ),
        ("restart", True, "n\n", 1, "LOST: the variables of ps:0\nContinue and lose that? [y/N]: error: nothing", []),
        ("restart --yes", False, "", 0, "LOST: the variables of ps:0\n", [("ps:0", "worker:0", "worker:1")]),
        ("restart worker", False, "", 0, "", [("worker:0", "worker:1")]),
        ("restart worker --rolling", False, "", 0, "", [("worker:0",), ("worker:1",)]),
    ],
)
def test_restart(
    project: Project,
    line: str,
    terminal: bool,
    typed: str,
    code: int,
    error: str,
    restarted: list[tuple[str, ...]],
) -> None:
    project.bring_up(DEMO)
    outcome = project.run(line, typed=typed, terminal=terminal, env={"NO_COLOR": "1", "TERM": "dumb"})
    assert outcome.code == code
    assert outcome.stderr.startswith(error)
    assert [request.tasks for request in project.agent.asked(RestartRequest)] == restarted


@pytest.mark.parametrize(
    ("jobs", "names", "restarted", "lost"),
    [
        ("a: {tasks: 1}, worker: {tasks: 2}, ps: {tasks: 2}", "", "ps:0 ps:1 a:0 worker:0 worker:1", "ps:0, ps:1"),
        ("ps: {tasks: 2}, worker: {tasks: 2}", "worker /job:ps/task:1 worker:0", "ps:1 worker:0 worker:1", "ps:1"),
        ("ps: {tasks: 2}, worker: {tasks: 2}", "worker", "worker:0 worker:1", ""),
        ("local: {tasks: 1}, worker: {tasks: 2}", "worker:1 local", "local:0 worker:1", "local:0, worker:1"),
    ],
)
def test_which_tasks_are_restarted_in_which_order_and_hold_variables(
    project: Project, jobs: str, names: str, restarted: str, lost: str
) -> None:
    project.bring_up(f"name: demo\njobs: {{{jobs}}}\n")
    outcome = project.run(f"restart {names} --yes")
    assert outcome.stderr == (f"LOST: the variables of {lost}\n" if lost else "")
    assert [request.tasks for request in project.agent.asked(RestartRequest)] == [tuple(restarted.split())]


@pytest.mark.parametrize("state", TaskState)
def test_only_a_process_has_variables_to_lose(project: Project, state: TaskState) -> None:
    project.bring_up(DEMO)
    project.agent.states = {"ps:0": state}
    project.agent.answer(RestartRequest, [ClusterError("no more")])
    outcome = project.run("restart ps:0")
    has_none = state in {TaskState.BACKING_OFF, TaskState.FAILED, TaskState.STOPPED}
    problem = "no more" if has_none else "cluster 'demo' would lose the variables of ps:0: nothing was restarted"
    assert outcome.stderr.startswith(f"error: {problem}\n")


def test_a_restart_loses_runs_too_and_knows_its_tasks(project: Project) -> None:
    project.bring_up(DEMO)
    project.agent.runs = [RunSummary("a-1", "pi", {}, RunState.RUNNING, 1.0, 1.0, None, None, None, None)]
    project.agent.answer(FailingRunsRequest, [Reply(FailingRunsReply(("a-1",)))])
    lost = "the variables of ps:0, run a-1, if it uses these tasks"
    assert f"error: cluster 'demo' would lose {lost}: nothing was restarted\n" in project.run("restart").stderr
    outcome = project.run("restart ps:0 ps:7 --yes")
    assert (outcome.code, outcome.stderr.splitlines()[0]) == (2, "error: no task 'ps:7'")


TASK = topology_of("jobs: {ps: {tasks: 1}}").tasks[0]
STEP = HostStep("host1 must be replaced", ("the runs on host1",), "Or give it another `name:`.")
RESTART = PlannedAction(ActionKind.RESTART, TASK, "env changed", ("the variables of ps:0",))


def options(*, yes: bool = False) -> up.ChangeOptions:
    return up.ChangeOptions(dry_run=False, yes=yes, timeout=1.0, output="text")


def test_what_hosts_and_tasks_lose_is_shown_and_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {name: Stream(b"y\ny\n" * (name == "stdin"), is_terminal=True) for name in ("stdin", "stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(f"sys.{name}", stream)
    given = options()
    up._confirm_hosts("c", (STEP, RESTART), given)
    up._confirm_hosts("c", (STEP,), given)
    up._confirm_losses("c", (RESTART,), given)
    question = "Continue and lose that? [y/N]:"
    said = "".join(stream.text() for name, stream in streams.items() if name != "stdin")
    assert said.count(question) == 1
    assert said.lstrip().splitlines()[:2] == [str(STEP), str(RESTART)]  # click 8.1 writes a blank to standard output
    more = PlannedAction(ActionKind.STOP, TASK, "removed", ("run pi-1",))
    up._confirm_losses("c", (RESTART, more), given)
    said = "".join(stream.text() for name, stream in streams.items() if name != "stdin")
    assert said.count(question) == 2, "another loss is another question"


def test_without_anybody_to_ask_all_losses_are_refused_at_once() -> None:
    with pytest.raises(ClusterError) as caught:
        up._confirm_hosts("c", (STEP, RESTART), options())
    error = caught.value
    assert error.message.splitlines() == [
        "cluster 'c' would lose the runs on host1, the variables of ps:0: nothing was changed",
        str(STEP),
        str(RESTART),
    ]
    assert error.hint.startswith("Or give it another `name:`. Add --yes to do it anyway")
    assert error.exit_code is ExitCode.USAGE


def test_yes_shows_what_is_lost_and_asks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    up._confirm_hosts("c", (STEP, RESTART), options(yes=True))
    assert capsys.readouterr().err.splitlines() == [str(STEP), str(RESTART)]
