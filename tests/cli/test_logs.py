"""`logs` and `events`: how lines are printed, and what is asked of the agents."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.project import Outcome, Project
from tfcluster.core.log_levels import LogLevel
from tfcluster.protocol.api import Done, Reply
from tfcluster.protocol.api.logs import (
    AGENT_LOG,
    ClusterEvent,
    EventEvent,
    EventsRequest,
    LogEvent,
    LogLine,
    LogPositions,
    LogsRequest,
)
from tfcluster.protocol.serialization import to_json

LOGS = [
    LogLine("ps:0", 10.0, "one", None),
    LogLine("worker:10", 11.25, "two", None),
    LogLine("ps:0", 12.0, "three", None),
]
OF_A_LAUNCH = [LogLine("train-1a2b", 13.0, "four", "worker:1")]
EVENTS = [ClusterEvent(10.0, "up", None, "1 task"), ClusterEvent(11.0, "died", "worker:10", "SIGKILL")]


def clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


@pytest.fixture
def demo(project: Project) -> Project:
    project.bring_up("name: demo\njobs: {ps: {tasks: 1}, worker: {tasks: 11}}\n")
    project.agent.logs, project.agent.events = LOGS, EVENTS
    return project


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("logs", "ps:0 | one\nworker:10 | two\nps:0      | three\n"),
        ("logs ps", "ps:0 | one\nps:0 | three\n"),
        ("logs --no-prefix", "one\ntwo\nthree\n"),
        (
            "logs -t --no-prefix",
            "1970-01-01T00:00:10.000Z one\n1970-01-01T00:00:11.250Z two\n1970-01-01T00:00:12.000Z three\n",
        ),
        ("logs worker -o json", '{"task": "worker:10", "time": 11.25, "line": "two"}\n'),
        (
            "events",
            f"{clock(10.0)}  cluster     up             1 task\n{clock(11.0)}  worker:10   died           SIGKILL\n",
        ),
        ("events -n 1 -o json", '{"time": 11.0, "event": "died", "task": "worker:10", "detail": "SIGKILL"}\n'),
        (f"events -n {'9' * 20} -o json", "".join(f"{json.dumps(to_json(event))}\n" for event in EVENTS)),
    ],
)
def test_lines(demo: Project, line: str, shown: str) -> None:
    assert demo.run(line) == Outcome(0, shown, "")


def test_lines_of_a_launch_have_the_member_that_has_printed_them(demo: Project) -> None:
    demo.agent.logs = OF_A_LAUNCH
    assert demo.run("logs train-1a2b").stdout == "worker:1 | four\n"
    assert demo.run("logs train-1a2b ps").stdout == "train-1a2b worker:1 | four\n"
    assert json.loads(demo.run("logs train-1a2b -o json").stdout)["member"] == "worker:1"


def test_the_lines_of_several_hosts_are_merged_by_their_time_and_a_host_that_is_away_is_named(project: Project) -> None:
    project.bring_up("name: far\nhosts: [alpha, beta, gamma]\njobs: {worker: {tasks: 3}}\n")
    times = {"alpha": (1.0, 3.0), "beta": (2.0, 4.0)}
    project.agent.answer(
        LogsRequest,
        lambda request, host: [
            *(LogEvent(host, 1, LogLine(host, time, f"at {time:g}", None)) for time in times[host]),
            Reply(Done()),
        ],
    )
    project.agent.answer(
        EventsRequest,
        lambda request, host: [
            *(EventEvent("", 1, ClusterEvent(time, "ready", None, "")) for time in times[host]),
            Reply(Done()),
        ],
    )
    project.agent.away = {"gamma"}
    project.patch.setattr("tfcluster.settings.LOG_RECONNECT_SECONDS", 0.0)
    error = "error: host 'gamma' cannot be reached: no route to host\nhint: Type `ssh gamma`.\n"
    assert project.run("logs --no-prefix") == Outcome(5, "at 1\nat 2\nat 3\nat 4\n", error)
    events = project.run("events -n 3 -o json")
    assert (events.code, events.stderr) == (5, error)
    records = [json.loads(line) for line in events.stdout.splitlines()]
    assert [(record["time"], record["host"]) for record in records] == [(2.0, "beta"), (3.0, "alpha"), (4.0, "beta")]


PLAIN = LogsRequest((), None, None, follow=False, after={})


@pytest.mark.parametrize(
    ("line", "terminal", "request_"),
    [
        ("logs", False, PLAIN),
        ("logs ps worker:1 -n 3", False, replace(PLAIN, tasks=("ps", "worker:1"), lines=3)),
        ("logs --since 1970-01-02T00Z --until 1970-01-03T00Z", False, replace(PLAIN, since=86400.0, until=172800.0)),
        ("logs --grep one -g '(?i)TWO'", False, replace(PLAIN, grep=("one", "(?i)TWO"))),
        ("logs --level error", False, replace(PLAIN, level=LogLevel.ERROR)),
        ("logs --agent", False, replace(PLAIN, tasks=(AGENT_LOG,))),
        ("logs --agent localhost --tail 1", False, replace(PLAIN, tasks=(AGENT_LOG,), lines=1)),
        ("logs", True, replace(PLAIN, level=LogLevel.WARNING)),
        ("logs --all", True, PLAIN),
        ("logs --level info", True, PLAIN),
        ("logs -o json", True, PLAIN),
        ("logs --agent", True, replace(PLAIN, tasks=(AGENT_LOG,))),
    ],
)
def test_what_is_asked_of_the_agent(demo: Project, line: str, terminal: bool, request_: LogsRequest) -> None:
    assert demo.run(line, terminal=terminal).code == 0
    assert demo.agent.asked(LogsRequest) == [request_]


@pytest.mark.parametrize(
    ("hidden", "said"),
    [
        ([3, 4], "7 entries of TensorFlow below warning hidden: --all shows them\n"),
        ([1], "1 entry of TensorFlow below warning hidden: --all shows them\n"),
        ([], ""),
    ],
)
def test_a_terminal_says_how_much_is_hidden(demo: Project, hidden: list[int], said: str) -> None:
    demo.agent.answer(LogsRequest, [*(LogPositions({}, number) for number in hidden), Reply(Done())])
    assert demo.run("logs", terminal=True) == Outcome(0, "", said)


def test_following_says_at_once_that_entries_are_hidden(demo: Project) -> None:
    demo.agent.answer(LogsRequest, [Reply(Done())])
    said = "entries of TensorFlow below error are hidden: --all shows them\n"
    assert demo.run("logs -f --level error") == Outcome(0, "", said)


def test_only_placements_each_of_them_once(demo: Project) -> None:
    placed = "x: (Const): /job:worker/replica:0/task:1/device:CPU:0"
    demo.agent.logs = [LogLine("worker:1", 1.0, text, None) for text in ("other words", placed, placed)]
    assert demo.run("logs --placement").stdout == "worker:1 | /job:worker/task:1/device:CPU:0  x (Const)\n"
