"""Requests to a real agent, each on a connection of its own: wrong ones, many at once, and what is not read."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.hosts import CLUSTER, PI, Hosts, run_request, task_of, topology_of
from tests.conftest import running, wait_for
from tfcluster.client.rpc.agent_client import AgentClient, ResponseStream
from tfcluster.core.code import CodeLocation
from tfcluster.errors import ClusterError
from tfcluster.paths import socket_path
from tfcluster.protocol.api import Done, Request, encode_request
from tfcluster.protocol.api.cluster import (
    EnvironmentRequest,
    ExecProcess,
    ExecRequest,
    PrepareRequest,
    ReachRequest,
    RestartRequest,
    StatusRequest,
    WatchRequest,
)
from tfcluster.protocol.api.logs import EventEvent, EventsRequest, LogPositions
from tfcluster.protocol.api.runs import ATTACHED, AttachRequest, CancelRequest, EventRecord, JoinRequest, RunsRequest
from tfcluster.protocol.codec import Message, MessageDecoder, encode, encode_greeting
from tfcluster.transport.local import LocalTransport, connect

FOLLOW = EventsRequest(lines=0, since=None, follow=True, after={})
WAIT = "import signal\nprint('waiting', flush=True)\nsignal.pause()\n"


#: One host with a task, and a fork server that imports nothing.
TOPOLOGY = topology_of([task_of("worker:0", "a")], names="a")


def submit(client: AgentClient, script: Path, text: str) -> tuple[ResponseStream[EventRecord, Done], str]:
    """Submit a run of a script; return its events and its id."""
    script.write_text(text)
    path, folder = str(script), str(script.parent)
    parameters: dict[str, Any] = {"args": [], "path": path, "argument": path, "cwd": folder, "seed": None}
    run = client.stream(run_request("script", parameters, upload=path, upload_name=script.name))
    identity = next(run).record["run"]
    with script.open("rb") as file:
        run.send_file(file)
    return run, identity


def test_requests_are_served_side_by_side(agents: Hosts, client: AgentClient, tmp_path: Path) -> None:
    wait_for(lambda: not own_connections())  # the agent closes that of `up` a moment after the command did
    events, watch = client.stream(FOLLOW), client.stream(WatchRequest(600.0))
    assert isinstance(next(events), LogPositions)
    assert next(watch).tasks[0].short == "worker:0"
    run, identity = submit(client, tmp_path / "wait.py", WAIT)
    output = next(run).record
    assert (output["event"], output["stream"], output["data"].strip()) == ("output", "stdout", "waiting")
    assert client.call(RestartRequest((), 1.0)) == Done()
    restart = next(event for event in events if isinstance(event, EventEvent))
    assert restart.line.task == "worker:0"
    assert client.call(StatusRequest()).status.cluster == CLUSTER
    wait_for(lambda: len(own_connections()) == 3)  # the agent closes those of the calls a moment after the command did

    # Closing one response cancels that request only: here, the run, which its command owns.
    run.close()
    again = client.stream(AttachRequest(identity, 0, 0, cancel_on_disconnect=False))
    assert list(again)[-1].record["state"] == "cancelled"
    assert next(watch).cluster == CLUSTER
    watch.close()
    assert client.call(RunsRequest(None)).runs[-1].run == identity


def own_connections() -> list[str]:
    sockets = Path("/proc/net/unix").read_text().splitlines()
    return [line for line in sockets if line.endswith(str(socket_path(CLUSTER, "a"))) and line.split()[5] == "03"]


def test_a_command_of_exec_ends_with_its_request(client: AgentClient) -> None:
    with running("sh", "-c", "sleep 985; true", start_new_session=True) as command:
        wait_for(Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text)
        process = ExecProcess("one", command.pid)
        with pytest.raises(ClusterError, match="that started this command has ended"):
            client.call(EnvironmentRequest(None, process))
        request = client.stream(ExecRequest("one"))
        client.call(EnvironmentRequest(None, process))
        assert command.poll() is None
        request.close()
        assert command.wait(60) == -signal.SIGTERM
    wait_for(lambda: not has_processes(command.pid))


def has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_not_read_of_a_stream_piles_up_nowhere(agents: Hosts, client: AgentClient, tmp_path: Path) -> None:
    chatty = "for _ in range(40_000): print('0123456789' * 100)\n"
    run, identity = submit(client, tmp_path / "chatty.py", chatty)
    assert list(run)[-1].record["state"] == "succeeded"

    agent = agents.sandbox.recorded_agent("a")
    before = resident_bytes(agent)
    unread = client.stream(AttachRequest(identity, 0, 0, cancel_on_disconnect=False))
    for _ in range(300):
        assert client.call(StatusRequest()).status.cluster == CLUSTER
    assert resident_bytes(agent) - before < 20_000_000
    output = "".join(event.record["data"] for event in unread if event.record["event"] == "output")
    assert output.count("\n") == 40_000


def response_to(data: bytes) -> list[Message]:
    """Send data to an agent; return what it sends after its greeting, until it closes the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(socket_path(CLUSTER, "a")))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    return [json.loads(line) for line in received.splitlines() if not line.startswith(encode_greeting().strip())]


@pytest.mark.usefixtures("agents")
def test_a_command_that_does_not_speak_the_protocol_gets_an_error() -> None:
    (answer,) = response_to(b'{"version": 2, "tfcluster": "0.1"}\n')
    assert answer["error"]["message"].endswith("and this command is tfcluster 0.1 (protocol 2)")
    assert "Install tfcluster" in answer["error"]["hint"]
    for data in (b"hello\n", encode_greeting() + b"hello\n", encode_greeting() + b"[]\n"):
        (answer,) = response_to(data)
        assert answer["error"]["message"] == "a line that is not a message arrived"


def outcome_of(request: Any) -> Message:
    """Send a request; return the last message of the response."""
    channel = LocalTransport(CLUSTER, "a").open(start=False)
    channel.send(encode(request))
    decoder = MessageDecoder(is_agent=False)
    while (message := decoder.take_message()) is None or "event" in message:
        decoder.feed(channel.receive(30.0))
    channel.close()
    return message


@pytest.mark.usefixtures("agents")
def test_a_command_that_attaches_again_is_answered_at_once(client: AgentClient, tmp_path: Path) -> None:
    run, identity = submit(client, tmp_path / "waits.py", WAIT)
    again = client.stream(AttachRequest(identity, 1, None, cancel_on_disconnect=False))
    assert next(again).record == {"event": ATTACHED}
    client.call(CancelRequest(identity))
    *before, last = [event.record["event"] for event in again]
    assert last == "result"
    assert before in ([], ["stopped"]), "the driver says so if it has begun to wait for the script"
    run.close()


@pytest.mark.usefixtures("agents")
def test_a_wrong_request_fails_alone() -> None:
    requests = [
        {"method": "restart", "arguments": {"tasks": [], "grace": "hunter2"}},
        {"method": "explode", "arguments": {}},
        {"method": "runs", "arguments": {"lines": None}},
    ]
    outcomes = [outcome_of(request) for request in requests]
    assert outcomes[0]["error"]["message"] == "request 'restart': grace: expected a number"
    assert outcomes[1]["error"]["message"] == "not a request: 'explode'"
    assert "reply" in outcomes[2]


ODD_PORTS = ("", "-1", "65536", "1e5", " 1", "\N{FULLWIDTH DIGIT ONE}", "9" * 5000)
ODD_ADDRESSES = ["", "host", ":1", "a\0b:1", "x" * 300 + ":1", *(f"host:{port}" for port in ODD_PORTS)]


def odd_requests() -> Iterator[Request[Any, Any]]:
    """Requests of the right types whose values no command sends."""
    yield from (ReachRequest((address,), 1.0) for address in ODD_ADDRESSES)
    yield from (ReachRequest(("localhost:1",), seconds) for seconds in (-1.0, 0.0, 1e300))
    script: dict[str, Any] = {"args": [], "path": "/x.py", "argument": "x.py", "cwd": "/"}
    for name, value in (("args", 5), ("args", [1]), ("path", 5), ("cwd", None), ("module", [])):
        yield run_request("script", {**script, name: value})
    yield run_request("pi", PI, jobs=("worker",))
    yield from (join_request(script, address) for address in ODD_ADDRESSES)
    for fields in ({"port": 70000}, {"port": -1}, {"gpus": -1}, {"cpus": 10**30}):
        yield PrepareRequest(topology_of([task_of("worker:0", "a", **fields)]), listens=False)


def join_request(script: dict[str, Any], coordinator: str) -> JoinRequest:
    options = run_request("script", script, jobs=("worker",)).options
    return JoinRequest("join-1", options, coordinator, "ab" * 32, CodeLocation("a" * 64, "x.py", ""))


def test_odd_values_of_a_request_are_errors_without_a_traceback(agents: Hosts) -> None:
    for request in map(encode_request, odd_requests()):
        outcome = outcome_of(request)
        assert "error" in outcome, request
        assert "the agent failed" not in outcome["error"]["message"], request
    assert response_to(b'{"version": 1e400}\n'), "an error"
    for name in ("agent.log", "agent.stderr"):
        assert "Traceback" not in (agents.state_folder("a") / "logs" / name).read_text()


def test_a_command_that_disconnects_at_once_leaves_nothing(agents: Hosts) -> None:
    request = encode_greeting() + encode(encode_request(RunsRequest(None)))
    agent = agents.sandbox.recorded_agent("a")
    before = len(os.listdir(f"/proc/{agent}/fd"))
    for _ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(socket_path(CLUSTER, "a")))
            connection.sendall(request)
    assert "reply" in outcome_of(encode_request(RunsRequest(None)))
    wait_for(lambda: len(os.listdir(f"/proc/{agent}/fd")) == before)


def test_an_idle_agent_lives_as_long_as_a_command_is_connected(hosts: Hosts) -> None:
    transport = LocalTransport(CLUSTER, "a")
    first = ResponseStream(transport, transport.open(start=True), RunsRequest(None))
    assert first.result().runs == ()
    second = ResponseStream(transport, transport.open(start=False), RunsRequest(None))
    first.close()
    assert second.result().runs == ()
    other = connect(CLUSTER, "a")
    assert other is not None
    other.close()
    third = ResponseStream(transport, transport.open(start=False), RunsRequest(None))
    assert third.result().runs == ()
    second.close()
    third.close()
    wait_for(lambda: not hosts.sandbox.leftovers())


def test_a_request_that_follows_another_waits_for_the_end_of_an_idle_agent(hosts: Hosts) -> None:
    """Although the agent may not have read yet that the first one is over."""
    transport = LocalTransport(CLUSTER, "a")
    first = ResponseStream(transport, transport.open(start=True), RunsRequest(None))
    assert first.result().runs == ()
    second_channel = transport.open(start=False)
    first.close()
    second = ResponseStream(transport, second_channel, RunsRequest(None))
    assert second.result().runs == ()
    second.close_and_reap()
    assert not hosts.sandbox.leftovers()


def test_sigterm_ends_an_idle_agent_without_a_trace(hosts: Hosts) -> None:
    transport = LocalTransport(CLUSTER, "a")
    response = ResponseStream(transport, transport.open(start=True), RunsRequest(None))
    assert response.result().runs == ()
    os.kill(hosts.sandbox.recorded_agent("a"), signal.SIGTERM)
    wait_for(lambda: not hosts.sandbox.leftovers())
    response.close()
