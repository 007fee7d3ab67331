"""Requests and their responses, with an agent that the test plays on a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import read_logs
from tfcluster.client.rpc.agent_client import AgentClient, AgentDisconnectedError
from tfcluster.client.status import NoStatusError, take_snapshot
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCK, socket_path
from tfcluster.protocol.api import Done
from tfcluster.protocol.api.cluster import ReachRequest, RestartRequest, StatusRequest
from tfcluster.protocol.api.logs import LogEvent, LogLine, LogPositions, LogsRequest
from tfcluster.protocol.codec import Message, MessageDecoder, encode, encode_greeting, encode_rejection
from tfcluster.protocol.serialization import to_json
from tfcluster.transport import local

Play = Callable[["Command"], None]
Agent = Callable[[Play], Play]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Has one connection answered by the function that it decorates, as the agent of cluster `played`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(settings, "AGENT_EXIT_UNANNOUNCED_SECONDS", 0.0)  # the played agent is this process
    path = socket_path("played")
    path.parent.mkdir(parents=True)
    (path.parent / LOCK).write_text('{"pid": 1}')
    threads: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_with(play: Play) -> Play:
            def serve() -> None:
                served, _ = listener.accept()
                with served:
                    play(Command(served))

            threads.append(threading.Thread(target=serve, daemon=True))  # of a failed test, it may wait for a command
            threads[-1].start()
            return play

        yield answer_with
        for thread in threads:
            thread.join(30)


LOGS = LogsRequest(("a",), 3, None, follow=False, after={})


class Command:
    """The command's end of a connection, as the agent sees it; the greeting is sent with the first message."""

    def __init__(self, served: socket.socket) -> None:
        self.served = served
        self._decoder = MessageDecoder(is_agent=True)
        self._greeting = encode_greeting()

    def receive(self) -> Message:
        """Return the request."""
        self._greet()
        while (message := self._decoder.take_message()) is None:
            data = self.served.recv(1 << 16)
            if not data:
                raise ConnectionError
            self._decoder.feed(data)
        return message

    def send(self, *messages: Message, cut: bytes = b"") -> None:
        """Send messages, then a part of another one."""
        self._greet()
        data = b"".join(map(encode, messages)) + cut
        for at in range(0, len(data), 7):  # however the bytes are cut
            self.served.sendall(data[at : at + 7])

    def wait_for_end(self) -> None:
        """Wait until the command disconnects."""
        while self.served.recv(1 << 16):
            continue

    def _greet(self) -> None:
        self.served.sendall(self._greeting)
        self._greeting = b""


def event(value: object) -> Message:
    return {"event": to_json(value)}


def reply(value: object = Done(), *, ends: bool = False) -> Message:
    return {"reply": to_json(value), "ends": ends}


def failure(error: ClusterError) -> Message:
    return {"error": error.to_json(), "ends": False}


def log_line(text: str, following: int, log: str = "ps:0") -> LogEvent:
    return LogEvent(log, following, LogLine(log, 1.0, text, None))


def client() -> AgentClient:
    return AgentClient(local.LocalTransport("played"))


def test_events_are_followed_by_the_reply(agent: Agent) -> None:
    requests: list[Message] = []

    @agent
    def play(command: Command) -> None:
        requests.append(command.receive())
        command.send(event(log_line("one", 3)), event(log_line("two", 6)), reply())

    response = client().stream(LOGS)
    assert list(response) == [log_line("one", 3), log_line("two", 6)]
    assert response.result() == Done()
    assert requests == [{"method": "logs", "arguments": to_json(LOGS)}]


def test_a_request_that_times_out_ends_no_other(agent: Agent) -> None:
    over = threading.Event()

    def play_silent(command: Command) -> None:
        command.receive()
        command.wait_for_end()
        over.set()

    @agent
    def play(command: Command) -> None:
        command.receive()
        command.send(event(log_line("a", 1)))
        agent(play_silent)
        over.wait(30)
        command.send(event(log_line("aa", 2)), reply())

    first = client().stream(LOGS)
    assert next(first) == log_line("a", 1)
    with pytest.raises(ClusterError, match=r"has not answered within 0\.05 s"):
        client().call(ReachRequest((), 1.0), timeout=0.05)
    assert list(first) == [log_line("aa", 2)]


def test_closing_a_response_cancels_its_request(agent: Agent) -> None:
    ended = threading.Event()

    @agent
    def play(command: Command) -> None:
        command.receive()
        command.send(event(log_line("a", 1)))
        command.wait_for_end()
        ended.set()

    response = client().stream(LOGS)
    assert next(response) == log_line("a", 1)
    response.close()
    response.close()
    assert ended.wait(30)


def test_an_error_of_the_agent_is_raised_unchanged(agent: Agent) -> None:
    problem = ClusterError("no port left", hint="free one", exit_code=ExitCode.UNHEALTHY)

    @agent
    def play(command: Command) -> None:
        command.receive()
        command.send(failure(problem))

    response = client().stream(StatusRequest())
    for _ in range(2):
        with pytest.raises(ClusterError) as caught:
            response.result()
        assert caught.value.to_json() == problem.to_json()


def test_what_is_no_message_is_an_error_that_stays(agent: Agent) -> None:
    @agent
    def play(command: Command) -> None:
        command.receive()
        command.send(cut=b"hello\n")
        command.wait_for_end()

    response = client().stream(LOGS)
    for _ in range(2):
        with pytest.raises(ClusterError, match="a line that is not a message arrived"):
            next(response)


def test_an_agent_of_another_version_is_reported(agent: Agent) -> None:
    problem = ClusterError("the agent speaks version 2 of the protocol, this command version 3", hint="use another")

    @agent
    def play(command: Command) -> None:
        command.served.recv(1 << 16)
        command.served.sendall(encode_rejection(problem))

    with pytest.raises(ClusterError) as caught:
        client().call(StatusRequest())
    assert caught.value.to_json() == problem.to_json()


@pytest.mark.parametrize("sends_events", [False, True])
def test_a_disconnect_before_the_end_of_the_response_is_an_error(agent: Agent, sends_events: bool) -> None:
    @agent
    def play(command: Command) -> None:
        command.receive()
        if sends_events:
            command.send(event(log_line("one", 3)), cut=b'{"event":{')

    with pytest.raises(AgentDisconnectedError, match="the agent disconnected before it replied"):
        client().stream(LOGS).result()


@pytest.mark.parametrize("changes", [False, True])
def test_only_a_request_that_changes_nothing_is_sent_again_after_a_disconnect(agent: Agent, changes: bool) -> None:
    received: list[str] = []

    @agent
    def play(command: Command) -> None:
        received.append(command.receive()["method"])
        if not changes:
            agent(play_next)

    def play_next(command: Command) -> None:
        command.receive()
        received.append("again")
        command.send(reply())

    if changes:
        with pytest.raises(AgentDisconnectedError):
            client().call(RestartRequest(("worker:0",), 1.0))
        assert received == ["restart"]
    else:
        assert client().call(LOGS) == Done()
        assert received == ["logs", "again"]


def test_an_agent_that_ends_before_it_greets_is_followed_by_the_next(agent: Agent) -> None:
    def play(command: Command) -> None:
        command.receive()
        command.send(reply())

    @agent
    def hang_up(command: Command) -> None:  # another command has replaced it
        agent(play)

    assert client().call(LOGS) == Done()


def test_the_status_is_that_of_the_agent_that_follows(agent: Agent) -> None:
    problem = ClusterError("of the next agent")

    def play(command: Command) -> None:
        command.receive()
        command.send(failure(problem))

    @agent
    def hang_up(command: Command) -> None:
        command.receive()
        agent(hang_up_too)

    def hang_up_too(command: Command) -> None:  # the topology is asked for, too
        command.receive()
        agent(play)

    with pytest.raises(NoStatusError, match="of the next agent"):
        take_snapshot(Cluster("played"))


def test_an_agent_that_does_not_answer_is_given_up(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RPC_TIMEOUT_SECONDS", 0.05)
    over = threading.Event()

    @agent
    def play(command: Command) -> None:
        over.wait(30)

    with pytest.raises(ClusterError, match=r"has not answered within 0\.05 s") as caught:
        client().call(StatusRequest())
    over.set()
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "kill -9" in caught.value.hint


def test_without_an_agent_and_a_journal_the_cluster_is_not_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ClusterError) as caught:
        AgentClient(local.LocalTransport("nobody")).call(StatusRequest())
    assert caught.value.exit_code is ExitCode.NOT_RUNNING


def test_logs_continue_at_the_next_agent_behind_the_last_line(agent: Agent) -> None:
    requests: list[dict[str, object]] = []

    def play(command: Command) -> None:
        requests.append(command.receive()["arguments"])
        agent(play_next)
        positions = event(LogPositions({"ps:0": 5, "worker:0": 9}))
        command.send(positions, event(log_line("one", 9)), cut=b'{"event": {')

    def play_next(command: Command) -> None:
        requests.append(command.receive()["arguments"])
        positions = event(LogPositions({"ps:0": 9, "worker:0": 9}))
        command.send(positions, event(log_line("two", 13)), reply())

    agent(play)
    lines = list(read_logs(Cluster("played"), ["ps", "worker"], lines=1, follow=True))
    assert [line["line"] for line in lines] == ["one", "two"]
    first = {"tasks": ["ps", "worker"], "lines": 1, "since": None, "follow": True, "after": {}}
    first |= {"until": None, "grep": [], "level": None}
    # There is no journal: the cluster went down with its agent, and there is only the rest to be read.
    assert requests == [first, {**first, "follow": False, "after": {"ps:0": 9, "worker:0": 9}}]


def test_agents_that_die_one_after_the_other_are_given_up(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RECONNECT_INITIAL_SECONDS", 0)
    died: list[int] = []

    @agent
    def play(command: Command) -> None:
        command.receive()
        died.append(len(died))
        if len(died) < settings.LOG_AGENTS:
            agent(play)

    with pytest.raises(AgentDisconnectedError):
        list(read_logs(Cluster("played")))
    assert len(died) == settings.LOG_AGENTS


def test_an_agent_whose_start_takes_long_is_connected_to_all_the_same(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = socket_path("played")
    aside = path.rename(path.with_name("aside"))
    monkeypatch.setattr(settings, "AGENT_CONNECT_SECONDS", 0.05)

    def start_agent(cluster: str, host: str) -> None:
        over = time.monotonic() + 0.1
        while time.monotonic() < over:  # longer than a meeting
            time.sleep(0.01)
        aside.rename(path)

    def play(command: Command) -> None:
        command.receive()
        command.send(reply())

    monkeypatch.setattr(local, "start_agent", start_agent)
    agent(play)
    assert client().call(LOGS, start=True) == Done()
