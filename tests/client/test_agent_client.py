"""Requests and their responses: errors, disconnections, other versions, and the agents that follow dead ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fake_agent import WAIT
from tests.project import Outcome, Project
from tfcluster import settings
from tfcluster.client.rpc.agent_client import AgentClient, AgentDisconnectedError
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import journal_path
from tfcluster.protocol.api import Done, Reply
from tfcluster.protocol.api.cluster import (
    ReachRequest,
    RestartRequest,
    StatusRequest,
    TopologyRequest,
)
from tfcluster.protocol.api.logs import LogEvent, LogLine, LogPositions, LogsRequest
from tfcluster.protocol.codec import encode, encode_rejection
from tfcluster.protocol.serialization import to_json
from tfcluster.transport import local
from tfcluster.version import PROTOCOL

LOGS = LogsRequest(("a",), 3, None, follow=False, after={})
PROBLEM = ClusterError("no port left", hint="free one", exit_code=ExitCode.UNHEALTHY)


@pytest.fixture
def played(project: Project) -> Project:
    """A cluster that runs, in the current folder."""
    project.bring_up("name: played\njobs: {ps: {tasks: 1}, worker: {tasks: 1}}\n")
    return project


@pytest.fixture
def client(played: Project) -> AgentClient:
    return AgentClient(local.LocalTransport("played"))


def log_line(text: str, following: int, log: str = "ps:0") -> LogEvent:
    return LogEvent(log, following, LogLine(log, 1.0, text, None))


def test_events_are_followed_by_the_reply_however_the_bytes_are_cut(played: Project, client: AgentClient) -> None:
    events = [log_line("one", 3), log_line("two", 6)]
    messages = [*({"event": to_json(event)} for event in events), {"reply": {}, "ends": False}]
    whole = b"".join(map(encode, messages))
    played.agent.answer(LogsRequest, [whole[at : at + 7] for at in range(0, len(whole), 7)])
    response = client.stream(LOGS)
    assert list(response) == events
    assert response.result() == Done()
    assert played.agent.asked(LogsRequest) == [LOGS]


def test_a_request_that_times_out_ends_no_other(played: Project, client: AgentClient) -> None:
    over = threading.Event()

    def answer(request: LogsRequest, host: str) -> Iterator[object]:
        yield log_line("a", 1)
        over.wait(30)
        yield from (log_line("aa", 2), Reply(Done()))

    played.agent.answer(LogsRequest, answer)
    played.agent.answer(ReachRequest, [WAIT])
    first = client.stream(LOGS)
    assert next(first) == log_line("a", 1)
    with pytest.raises(ClusterError, match=r"has not answered within 0\.05 s"):
        client.call(ReachRequest((), 1.0), timeout=0.05)
    over.set()
    assert list(first) == [log_line("aa", 2)]


def test_closing_a_response_cancels_its_request(played: Project, client: AgentClient) -> None:
    ended = threading.Event()

    def answer(request: LogsRequest, host: str) -> Iterator[object]:
        try:
            yield from (log_line("a", 1), WAIT)
        finally:
            ended.set()

    played.agent.answer(LogsRequest, answer)
    response = client.stream(LOGS)
    assert next(response) == log_line("a", 1)
    response.close()
    response.close()
    assert ended.wait(30)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ([PROBLEM], Outcome(4, "", "error: no port left\nhint: free one\n")),
        ([b"hello\n", WAIT], Outcome(1, "", "error: a line that is not a message arrived\n")),
        (
            [Reply(5)],
            Outcome(1, "", "error: the agent sent a wrong reply to the request 'status': expected an object\n"),
        ),
        (
            [],
            Outcome(
                1,
                "",
                "error: the agent disconnected before it replied\n"
                "hint: Type the command again: it starts another agent, which adopts the tasks that run.\n",
            ),
        ),
    ],
    ids=["error", "no message", "another type", "disconnected"],
)
def test_what_a_command_says_of_a_response(played: Project, answer: list[object], outcome: Outcome) -> None:
    played.agent.answer(StatusRequest, answer)
    assert played.run("status") == outcome


def test_an_agent_that_does_not_answer_is_given_up(played: Project) -> None:
    played.patch.setattr(settings, "RPC_TIMEOUT_SECONDS", 0.05)
    played.agent.answer(StatusRequest, [WAIT])
    pid = os.getpid()  # in which the fake agent is
    assert played.run("status") == Outcome(
        5,
        "",
        f"error: the agent (pid {pid}) has not answered within 0.05 s\n"
        f"hint: If a signal has stopped it, `kill -CONT {pid}` continues it. If it hangs, `kill -9 {pid}`: the tasks "
        "continue, and the next command starts another agent.\n",
    )


@pytest.mark.parametrize(
    ("greeting", "error"),
    [
        (
            encode({"version": PROTOCOL - 1, "tfcluster": "0.0.1"}),
            f"the cluster's agent is tfcluster 0.0.1 (protocol {PROTOCOL - 1}), and this command is tfcluster ",
        ),
        (
            encode({"version": PROTOCOL + 1, "tfcluster": "9.9.9"}),
            f"the cluster's agent is tfcluster 9.9.9 (protocol {PROTOCOL + 1}), and this command is tfcluster ",
        ),
        (encode_rejection(PROBLEM), "no port left\nhint: free one\n"),
    ],
    ids=["older", "newer", "rejection"],
)
def test_an_agent_of_another_version_is_reported(played: Project, greeting: bytes, error: str) -> None:
    played.agent.greeting = greeting
    outcome = played.run("status")
    assert outcome.stdout == ""
    assert outcome.stderr.startswith(f"error: {error}")
    assert played.agent.asked(StatusRequest) == []


@pytest.mark.parametrize("sends_events", [False, True])
def test_a_disconnect_before_the_end_of_the_response_is_an_error_that_stays(
    played: Project, client: AgentClient, sends_events: bool
) -> None:
    played.agent.answer(LogsRequest, [log_line("one", 3), b'{"event":{'] if sends_events else [])
    response = client.stream(LOGS)
    for _ in range(2):
        with pytest.raises(AgentDisconnectedError, match="the agent disconnected before it replied"):
            response.result()


def test_only_a_request_that_changes_nothing_is_sent_again_after_a_disconnect(
    played: Project, client: AgentClient
) -> None:
    played.agent.answer(LogsRequest, [], [Reply(Done())])
    assert client.call(LOGS) == Done()
    assert len(played.agent.asked(LogsRequest)) == 2
    played.agent.answer(RestartRequest, [])
    with pytest.raises(AgentDisconnectedError):
        client.call(RestartRequest(("worker:0",), 1.0))
    assert len(played.agent.asked(RestartRequest)) == 1


def test_an_agent_that_ends_before_it_greets_is_followed_by_the_next(played: Project, client: AgentClient) -> None:
    played.agent.hang_ups = 1  # another command has replaced it
    played.agent.answer(LogsRequest, [Reply(Done())])
    assert client.call(LOGS) == Done()


def test_the_status_is_that_of_the_agent_that_follows(played: Project) -> None:
    played.agent.answer(StatusRequest, [], [PROBLEM])
    played.agent.answer(TopologyRequest, [])  # which is asked for, too
    assert played.run("status").stderr == "error: no port left\nhint: free one\n"


def test_an_agent_that_has_died_is_followed_by_one_that_is_started(played: Project) -> None:
    played.agent.stop()
    assert played.run("status").stdout.startswith("played  running")


def test_logs_continue_at_the_next_agent_behind_the_last_line(played: Project) -> None:
    def die(request: LogsRequest, host: str) -> Iterator[object]:
        yield from (LogPositions({"ps:0": 5, "worker:0": 9}), log_line("one", 9))
        journal_path("played").unlink()  # the cluster goes down with its agent
        yield b'{"event": {'

    rest = [LogPositions({"ps:0": 9, "worker:0": 9}), log_line("two", 13), Reply(Done())]
    played.agent.answer(LogsRequest, die, rest)
    assert played.run("logs ps worker -n 1 -f") == Outcome(0, "ps:0 | one\nps:0 | two\n", "")
    first = LogsRequest(("ps", "worker"), 1, None, follow=True, after={})
    # There is only the rest to be read.
    following = replace(first, follow=False, after={"ps:0": 9, "worker:0": 9})
    assert played.agent.asked(LogsRequest) == [first, following]


def test_agents_that_die_one_after_the_other_are_given_up(played: Project) -> None:
    played.patch.setattr(settings, "RECONNECT_INITIAL_SECONDS", 0)
    played.agent.answer(LogsRequest, [])
    outcome = played.run("logs")
    assert (outcome.code, outcome.stderr.splitlines()[0]) == (1, "error: the agent disconnected before it replied")
    assert len(played.agent.asked(LogsRequest)) == settings.LOG_AGENTS
