"""A request and its answer, against an agent that this test plays on a real socket."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.logs import read_logs
from tfcluster.client.rpc import AgentClient, AgentDisconnectedError
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import LOCK, state_folder
from tfcluster.protocol.api import VERSION, Method
from tfcluster.transport import local

Play = Callable[[socket.socket], None]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Play], None]]:
    """Has one connection answered by a function, as the agent of cluster `played`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # The agent that is played does not exit: it is this process.
    monkeypatch.setattr(settings, "AGENT_EXIT_UNANNOUNCED_SECONDS", 0.0)
    path = tmp_path / "agent"
    folder = state_folder("played")
    folder.mkdir(parents=True)
    (folder / LOCK).write_text(json.dumps({"pid": 1, "socket": str(path)}))
    threads: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_with(play: Play) -> None:
            def serve() -> None:
                served, _ = listener.accept()
                with served:
                    play(served)

            threads.append(threading.Thread(target=serve))
            threads[-1].start()

        yield answer_with
        for thread in threads:
            thread.join(30)


def lines(*messages: object) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def test_events_come_one_by_one_and_then_the_reply(agent: Callable[[Play], None]) -> None:
    asked: list[object] = []

    def play(served: socket.socket) -> None:
        asked.append(json.loads(served.recv(1 << 16)))
        data = lines({"event": {"n": 1}}, {"event": {"n": 2}}, {"reply": {"done": True}})
        for at in range(0, len(data), 7):  # wherever the pieces end
            served.sendall(data[at : at + 7])

    agent(play)
    answer = AgentClient(local.LocalTransport("played")).stream(Method.LOGS, tasks=["a"], lines=3)
    assert [event["n"] for event in answer] == [1, 2]
    assert answer.finish() == {"done": True}
    assert asked == [{"version": VERSION, "call": "logs", "arguments": {"tasks": ["a"], "lines": 3}}]


def test_an_error_is_raised_as_the_agent_told_it(agent: Callable[[Play], None]) -> None:
    told = ClusterError("no port left", hint="free one", exit_code=ExitCode.UNHEALTHY)

    def play(served: socket.socket) -> None:
        served.recv(1 << 16)
        served.sendall(lines({"error": told.to_json()}))

    agent(play)
    with pytest.raises(ClusterError) as caught:
        AgentClient(local.LocalTransport("played")).call(Method.STATUS)
    assert caught.value.to_json() == told.to_json()


@pytest.mark.parametrize("before", [b"", b'{"event": {}}\n{"rep'])
def test_an_agent_that_goes_away_is_told(agent: Callable[[Play], None], before: bytes) -> None:
    def play(served: socket.socket) -> None:
        served.recv(1 << 16)
        served.sendall(before)

    agent(play)
    with pytest.raises(ClusterError, match="the agent went away before it answered"):
        AgentClient(local.LocalTransport("played")).call(Method.STATUS)


def test_an_agent_that_says_nothing_is_given_up(agent: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RPC_TIMEOUT_SECONDS", 0.05)
    over = threading.Event()

    def play(served: socket.socket) -> None:
        over.wait(30)

    agent(play)
    with pytest.raises(ClusterError, match=r"has not answered within 0\.05 s") as caught:
        AgentClient(local.LocalTransport("played")).call(Method.STATUS)
    over.set()
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "kill -9" in caught.value.hint


def test_without_an_agent_and_a_journal_the_cluster_is_not_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ClusterError) as caught:
        AgentClient(local.LocalTransport("nobody")).call(Method.STATUS)
    assert caught.value.exit_code is ExitCode.NOT_RUNNING


def printed(text: str, following: int) -> object:
    return {"event": {"log": "ps:0", "next": following, "line": {"task": "ps:0", "time": 1.0, "line": text}}}


def test_logs_go_on_at_the_next_agent_behind_the_last_line(agent: Callable[[Play], None]) -> None:
    asked: list[dict[str, object]] = []

    def play(served: socket.socket) -> None:
        asked.append(json.loads(served.recv(1 << 16))["arguments"])
        agent(play_next)
        served.sendall(lines({"event": {"after": {"ps:0": 5, "worker:0": 9}}}, printed("one", 9)) + b'{"event": {"lo')

    def play_next(served: socket.socket) -> None:
        asked.append(json.loads(served.recv(1 << 16))["arguments"])
        served.sendall(lines({"event": {"after": {"ps:0": 9, "worker:0": 9}}}, printed("two", 13), {"reply": {}}))

    agent(play)
    found = list(read_logs(Cluster("played"), ["ps", "worker"], lines=1, follow=True))
    assert [line["line"] for line in found] == ["one", "two"]
    first = {"tasks": ["ps", "worker"], "lines": 1, "since": None, "follow": True, "after": {}}
    # There is no journal: the cluster went down with its agent, and there is only the rest to be read.
    assert asked == [first, {**first, "follow": False, "after": {"ps:0": 9, "worker:0": 9}}]


def test_agents_that_die_one_after_the_other_are_given_up(
    agent: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "RECONNECT_INITIAL_SECONDS", 0)
    died: list[int] = []

    def play(served: socket.socket) -> None:
        died.append(len(served.recv(1 << 16)))
        if len(died) < settings.LOG_AGENTS:
            agent(play)

    agent(play)
    with pytest.raises(AgentDisconnectedError):
        list(read_logs(Cluster("played")))
    assert len(died) == settings.LOG_AGENTS


def test_an_agent_whose_start_takes_long_is_connected_to_all_the_same(
    agent: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = state_folder("played") / LOCK
    where = lock.read_text()
    lock.write_text(where.replace("agent", "nobody"))
    monkeypatch.setattr(settings, "AGENT_CONNECT_SECONDS", 0.05)

    def start_agent(cluster: str, host: str) -> None:
        over = time.monotonic() + 0.1
        while time.monotonic() < over:  # longer than a meeting
            time.sleep(0.01)
        lock.write_text(where)

    def play(served: socket.socket) -> None:
        served.recv(1 << 16)
        served.sendall(lines({"reply": {"done": True}}))

    monkeypatch.setattr(local, "start_agent", start_agent)
    agent(play)
    assert AgentClient(local.LocalTransport("played")).stream(Method.LOGS, start=True).finish() == {"done": True}
