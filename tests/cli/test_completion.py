"""Completion: the names of scripts, tasks, runs and clusters, at once and never with an error."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from tests.conftest import COMMAND, ROOT
from tests.fake_agent import WAIT
from tests.project import Project
from tfcluster.cli.completion import VARIABLE
from tfcluster.cli.main import cli
from tfcluster.core.states import RunState
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.protocol.api.runs import RunSummary

# The default completion of files is what `compopt` asks for; bash knows it only while a user types.
SCRIPT = """
compopt() { echo "(${*: -1})"; }
source %s
tfcluster() { %s "$@"; }
env() { local -x COMP_LINE="${1#*=}" BREAKS="${2#*=}" _TFCLUSTER_COMPLETE=bash_complete; "$4"; }
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE}
    _tfcluster_completion tfcluster
    echo "${COMPREPLY[@]}"
done
"""


@pytest.fixture
def bash(project: Project) -> Project:
    """A folder with scripts."""
    names = ("train.py", "other.py", "notes.txt", "my file.py", "pack/__init__.py", "pack/__main__.py", "pack/fit.py")
    for name in names:
        project.file(name)
    project.file("below/other.yaml", "name: other\njobs: {chief: {tasks: 1}, worker: {tasks: 1}}\n")
    return project


def completions(project: Project, *lines: str, seconds: float = 60.0) -> list[str]:
    """Return what bash offers at the end of each line; a busy machine may take long."""
    script = SCRIPT % (ROOT / "completions" / "tfcluster.bash", shlex.join(COMMAND))
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'tests' / 'changed'}:{ROOT}",
        "TEST_SETTINGS": f'{{"COMPLETION_SECONDS": {seconds}}}',
    }
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=project.folder,
        env=env,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout.splitlines()


TASKS = "ps worker ps:0 worker:0 worker:1"
# What bash offers; `(default)` stands for its own completion of files.
OFFERS = {
    "tfcluster ru": "run runs",
    "tfcluster run pi --sa": "--samples",
    "tfcluster run ": "graph pi mean linear expfit script other.py train.py",
    "tfcluster run tr": "train.py",
    "tfcluster run notes": "(default)",
    "tfcluster run train.py ": "(default)",
    "tfcluster run -m ": "other pack pack.fit train",
    "tfcluster run -m pack.f": "pack.fit",
    "tfcluster run -m pack.fit ": "(default)",
    "tfcluster run pi -c d": "demo",
    "tfcluster restart ": TASKS,
    "tfcluster restart worker:": "0 1",  # bash takes only what follows the colon
    "tfcluster logs --cluster demo wo": "worker worker:0 worker:1",
    "tfcluster scale w": "worker=2",
    "tfcluster scale worker=": "2",
    "tfcluster attach pi-": "pi-1a2b",
    "tfcluster attach sle": "sleeps-3c4d",
    "tfcluster fetch sle": "sleeps-3c4d",
    "tfcluster cancel ": "sleeps-3c4d",
    "tfcluster logs ": f"{TASKS} sleeps-3c4d pi-1a2b",
    "tfcluster logs --agent ": "localhost",
    "tfcluster launch --each ": "ps worker",
    "tfcluster launch --each ps,w": "ps,worker",
    "tfcluster launch --spec below/other.yaml --each c": "chief",
    "tfcluster exec --on ": "localhost ps:0 worker:0 worker:1",
    "tfcluster env ps": "ps ps:0",
    "tfcluster profile w": "worker worker:0 worker:1",
    "tfcluster tensorboard pi": "pi-1a2b",
    "tfcluster up ": "(default)",
}


def run_of(name: str, state: RunState) -> RunSummary:
    return RunSummary(name, name.partition("-")[0], {}, state, 1.0, 1.0, None, None, None, None)


@pytest.fixture
def demo(bash: Project) -> Project:
    """A cluster that runs, with a run that has ended and one that has not."""
    bash.bring_up("name: demo\njobs: {ps: {tasks: 1}, worker: {tasks: 2}}\n", "of demo/cluster.yaml")
    bash.agent.runs = [run_of("pi-1a2b", RunState.SUCCEEDED), run_of("sleeps-3c4d", RunState.RUNNING)]
    return bash


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # click 8.1 leaves a script open
@pytest.mark.parametrize("line", OFFERS)
def test_names_of_tasks_runs_and_clusters(demo: Project, capsys: pytest.CaptureFixture[str], line: str) -> None:
    demo.patch.chdir(demo.folder)
    for name, value in {"COMP_LINE": line, "BREAKS": ":=", VARIABLE: "bash_complete"}.items():
        demo.patch.setenv(name, value)
    with pytest.raises(SystemExit):
        cli.main(prog_name="tfcluster", complete_var=VARIABLE)
    answers = [answer.partition(",") for answer in capsys.readouterr().out.splitlines()]
    offered = [value if kind == "plain" else "(default)" for kind, _, value in answers]
    assert " ".join(offered) == OFFERS[line]


def test_what_bash_makes_of_it(demo: Project) -> None:
    lines = ["tfcluster ru", "tfcluster run pi --sa", "tfcluster run pi -c d", "tfcluster run tr"]
    lines += ["tfcluster restart worker:", "tfcluster scale worker="]
    assert completions(demo, *lines) == [OFFERS[line] for line in lines]
    assert completions(demo, "tfcluster up ")[0] == "(default)"


def test_what_cannot_be_known_is_left_out_without_an_error(bash: Project) -> None:
    lines = "tfcluster logs ", "tfcluster attach x", "tfcluster run none --x ", "tfcluster logs -c ../x '"
    assert completions(bash, *lines) == [""] * len(lines)
    bash.bring_up("name: demo\njobs: {ps: {tasks: 1}}\n", "of demo/cluster.yaml")
    bash.agent.answer(TopologyRequest, [WAIT])
    assert completions(bash, "tfcluster logs ", seconds=0.5) == [""]
    bash.agent.answer(TopologyRequest, bash.agent.usual)
    bash.file("cluster.yaml", "name: [")
    assert completions(bash, "tfcluster logs ", "tfcluster logs -c demo p") == ["", "ps ps:0"]
