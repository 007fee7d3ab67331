"""Why a task on another host does not serve, and why a program cannot connect to tasks that do."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.hosts import task_of, topology_of
from tfcluster import settings
from tfcluster.agent.runs import diagnosis
from tfcluster.agent.runs.diagnosis import Problem, describe_remote_task, explain_wait
from tfcluster.core.stacks import Wait

WAIT = Wait("Session.run", True, "/home/me/train.py", 12, "main")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that is bound to a port, and does not listen yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def describe(listener: socket.socket) -> Problem:
    task = task_of("worker:1", "b", port=listener.getsockname()[1], address_host="127.0.0.1")
    return asyncio.run(describe_remote_task(task))


def test_a_port_on_which_no_server_listens(listener: socket.socket) -> None:
    found = describe(listener)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    expected = f"worker:1 at {address} on b refuses connections: no server listens there, or a firewall rejects them"
    assert found.problem == expected
    assert "`tfcluster doctor`" in found.hint
    assert (found.task, found.host) == ("/job:worker/task:1", "b")


def test_a_server_that_does_not_answer(listener: socket.socket) -> None:
    listener.listen()
    assert describe(listener).problem.endswith("accepts connections but does not answer: it is frozen or hangs")


def test_a_port_that_answers_nothing(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "WAIT_CONNECT_SECONDS", 0.2)
    listener.listen(0)
    with ExitStack() as stack:  # the kernel drops more connections than fit into the queue
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        assert "connections are not answered (a firewall drops them, or the host is down)" in describe(listener).problem


def explain(wait: Wait, version: str | None = None, **topology: Any) -> list[Problem]:
    """Explain a wait of this process while all tasks serve."""

    async def probe(*arguments: Any) -> Any:
        return []

    async def probe_remote() -> Any:
        return [], {}

    tasks = topology_of([task_of("worker:0", "a", port=topology.get("port", 1))])
    supervisor: Any = SimpleNamespace(topology=tasks, host="a", health=SimpleNamespace(probe_all=probe))
    remote: Any = SimpleNamespace(probe_all=probe_remote)
    run: Any = SimpleNamespace(id="script-1", spec=None)
    return list(asyncio.run(explain_wait(run, os.getpid(), wait, supervisor, remote, version)))


def test_servers_with_another_tensorflow_than_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "tensorflow_version", lambda: "2.99.0")
    (found,) = explain(WAIT, "2.21.0")
    assert "the servers on this host run TensorFlow 2.21.0, the program 2.99.0" in found.problem
    assert found.hint == "`tfcluster down` and `tfcluster up` start all with the same."


def test_a_program_that_is_connected_to_no_task_may_have_a_proxy() -> None:
    assert "a proxy may be set in it" in explain(WAIT)[0].problem


def test_a_program_that_is_connected_is_told_how_to_look_further(listener: socket.socket) -> None:
    listener.listen()
    with socket.create_connection(listener.getsockname()):
        (found,) = explain(WAIT, port=listener.getsockname()[1])
    assert "they may not reach each other or the program" in found.problem
    assert "`tfcluster stack script-1`" in found.hint


def test_a_program_that_may_compute_has_no_problem() -> None:
    assert explain(Wait("Session.run", False, "train.py", 12, "main")) == []
