"""What others have written cannot command the terminal of the one who looks at it."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.project import Project
from tfcluster.core.states import TaskState
from tfcluster.core.status import LastExit
from tfcluster.errors import ClusterError
from tfcluster.protocol.api.cluster import PrepareRequest, StatusRequest
from tfcluster.protocol.api.logs import ClusterEvent, LogLine
from tfcluster.transport.errors import HostUnreachableError

#: A title, a cleared screen, a clipboard that is written, a C1 sequence, DEL, and text from right to left.
EVIL = "\x1b]0;title\x07\x1b[2J\x1b[H\x1b]52;c;ZXZpbA==\x07\x9b31m\x7f\u202etxt"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x1b[H\x1b]52;c;ZXZpbA==\x07\x9b31m\x7f\u202etxt"

# What rich and click send by themselves: styles.
_OURS = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def visited(project: Project) -> Project:
    """A cluster whose tasks and agent say EVIL."""
    project.bring_up("name: demo\njobs: {worker: {tasks: 1}}\n")
    project.agent.states = {"worker:0": TaskState.FAILED}
    project.agent.last_exit = LastExit("SIGKILL", 1.0, EVIL, (EVIL, "windows\r", "10%\r20%"))
    project.agent.logs = [LogLine("worker:0", 1.0, EVIL, None)]
    project.agent.events = [ClusterEvent(1.0, "died", "worker:0", EVIL)]
    return project


def on_screen(project: Project, line: str, code: int) -> str:
    """Return what a command shows on a terminal, after a check that nothing has commanded it but rich and click."""
    outcome = project.run(line, terminal=True, env={"COLUMNS": "250", "TERM": "xterm"})
    assert outcome.code == code, outcome
    shown = _OURS.sub("", outcome.stdout + outcome.stderr)
    assert not _CONTROL.search(shown), ascii(shown)
    return shown


@pytest.mark.parametrize(
    ("line", "code"),
    [("status", 4), ("logs", 0), ("events", 0), (shlex.quote(EVIL), 2), (f"validate '{EVIL}.yaml'", 2)],
)
def test_they_are_shown_and_not_obeyed(visited: Project, line: str, code: int) -> None:
    assert SHOWN in on_screen(visited, line, code)


def test_those_of_an_error_of_an_agent_are_shown_and_not_obeyed(visited: Project) -> None:
    visited.agent.answer(StatusRequest, [ClusterError(EVIL, hint=EVIL)])
    assert on_screen(visited, "status", 1) == f"error: {SHOWN}\nhint: {SHOWN}\n"


@pytest.mark.parametrize("line", ["up", "doctor"])
def test_those_of_a_host_such_as_the_output_of_ssh_are_shown_and_not_obeyed(project: Project, line: str) -> None:
    project.file("cluster.yaml", "name: far\nhosts: [alpha]\njobs: {worker: {tasks: 1}}\n")
    project.agent.answer(PrepareRequest, [HostUnreachableError("alpha", EVIL)])
    assert SHOWN in on_screen(project, line, 5)


def test_those_of_a_spec_are_shown_and_not_obeyed(project: Project) -> None:
    project.file("cluster.yaml", 'name: odd\njobs:\n  "wor\\e[2Jker\\u202e": {tasks: 1}\n')
    assert r"wor\x1b[2Jker\u202e" in on_screen(project, "validate", 2)


@pytest.mark.parametrize(("line", "code"), [("status", 4), ("logs", 0), ("events", 0)])
def test_json_has_none_and_loses_none(visited: Project, line: str, code: int) -> None:
    outcome = visited.run(f"{line} -o json")
    assert outcome.code == code
    (shown,) = outcome.stdout.splitlines()
    assert shown.isascii()
    assert shown.isprintable()
    assert EVIL in _strings(json.loads(shown))


def _strings(value: object) -> str:
    """All strings in a JSON value."""
    if isinstance(value, dict):
        value = [*value.values()]
    return "".join(map(_strings, value)) if isinstance(value, list) else str(value)
