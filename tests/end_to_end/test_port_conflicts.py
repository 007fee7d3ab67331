"""Another process takes the port of a task that is down: the task says who, and is started when the port is free."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import Sandbox, running, wait_for

SPEC = "name: taken\njobs:\n  worker: {tasks: 2}\n"

_LISTEN = """
import socket, sys
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(sys.argv[1])))
    server.listen()
    print("listening", flush=True)
    sys.stdin.read()
"""


@contextmanager
def taken(port: int) -> Iterator[int]:
    """Another process listens on a port; gives its pid."""
    with running(sys.executable, "-c", _LISTEN, str(port), stdin=-1, stdout=-1) as stranger:
        assert stranger.stdout.readline() == "listening\n"
        yield stranger.pid


def port_of(sandbox: Sandbox, short: str) -> int:
    return int(sandbox.task(short)["address"].rpartition(":")[2])


def kill_all(sandbox: Sandbox) -> None:
    """End the agent and all servers, as a machine does that is switched off."""
    servers = [os.pidfd_open(task["pid"]) for task in sandbox.status()["tasks"]]
    sandbox.kill_agent()
    for server in servers:
        signal.pidfd_send_signal(server, signal.SIGKILL)
    # A pidfd is readable when the last thread has exited: a process loses its mark before its sockets are closed.
    wait_for(lambda: len(select.select(servers, [], [], 0)[0]) == len(servers))
    for server in servers:
        os.close(server)


@pytest.mark.slow
def test_the_holder_is_named_and_the_task_is_started_when_the_port_is_free(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    port = port_of(sandbox, "worker:0")
    kill_all(sandbox)
    with taken(port) as stranger:

        def named() -> bool:
            last = sandbox.task("worker:0", code=4)["last_exit"]
            return f"port {port} is taken by process {stranger} (" in last["detail"]

        wait_for(named)
        task = sandbox.task("worker:0", code=4)
        assert (task["state"], task["last_exit"]["reason"]) == ("backing-off", "not started")
        assert f"port {port} is taken by process {stranger}" in sandbox("status", code=4).stdout
        wait_for(lambda: sandbox.task("worker:1", code=4)["state"] == "ready")
        # However long it takes: its end is not the task's.
        events = sandbox("events", "-o", "json").stdout
        assert events.count('"blocked"') == 1
        assert sandbox.task("worker:0", code=4)["restarts"] == 0
        assert "Could not start gRPC server" not in sandbox("logs").stdout
    after = sandbox.wait_until("running")["tasks"][0]
    assert after["address"].endswith(f":{port}")
    assert after["restarts"] == 1


@pytest.mark.slow
def test_a_task_without_restarts_reports_who_has_its_port(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC + "restart: {policy: never}\n"))
    port = port_of(sandbox, "worker:0")
    kill_all(sandbox)
    wait_for(lambda: sandbox.status(code=4)["state"] == "failed")
    sandbox.kill_agent()
    with taken(port) as stranger:
        error = sandbox("up", code=4).stderr
        assert f"port {port} is taken by process {stranger}" in error
    sandbox("up")
    assert sandbox.status()["state"] == "running"


@pytest.mark.slow
def test_a_restart_with_the_port_taken_waits_for_it(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec(SPEC))
    port = port_of(sandbox, "worker:0")
    kill_all(sandbox)
    with taken(port):
        wait_for(lambda: sandbox.task("worker:0", code=4)["state"] == "backing-off")
        restart = sandbox.start("restart", "worker:0", "--yes")
        wait_for(lambda: sandbox("events", "-o", "json").stdout.count('"blocked"') == 2)
    _, error = restart.communicate(timeout=90)
    assert restart.returncode == 0, error
    assert sandbox.wait_until("running")["tasks"][0]["address"].endswith(f":{port}")
