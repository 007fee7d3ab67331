"""Connections to agents and hosts: waits that have to end, large descriptors, and agents that cannot start."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import skip
from tfcluster import boot, settings
from tfcluster.core.hosts import Host
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport import local
from tfcluster.transport.channel import Channel, readable_fds
from tfcluster.transport.connector import CommandConnector
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.session import RemoteChannel, Session

#: select() supports no descriptor from this one on (FD_SETSIZE).
_SELECT_MAX = 1024


@pytest.fixture
def large_limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * _SELECT_MAX:
        skip("the hard limit of open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * _SELECT_MAX, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """Open files until each further one has a descriptor that select() does not support."""
    fds = [os.open(os.devnull, os.O_RDONLY)]
    while fds[-1] < _SELECT_MAX:
        fds.append(os.dup(fds[-1]))
    yield
    for fd in fds:
        os.close(fd)


@pytest.mark.usefixtures("large_limit")
def test_a_large_descriptor_and_the_end_of_a_pipe_are_readable() -> None:
    reading, writing = os.pipe()
    large = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, _SELECT_MAX)
    try:
        assert readable_fds([large, reading], 0) == set()
        os.write(writing, b"x")
        assert readable_fds([large, reading], None) == {large, reading}
    finally:
        for fd in (reading, large):
            os.close(fd)
    os.close(writing)
    reading, writing = os.pipe()
    os.close(writing)
    assert readable_fds([reading], None) == {reading}
    os.close(reading)


@pytest.mark.usefixtures("large_limit", "many_open_files")
def test_agents_and_sessions_with_large_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, agent = socket.socketpair()
    assert connection.fileno() > _SELECT_MAX
    channel = Channel(connection)
    with agent:
        assert not channel.wait_readable(0)
        agent.sendall(b"x")
        assert channel.receive(60) == b"x"
    assert channel.wait_for_end(60)
    session = start_session("print('tfcluster> {\"reply\": {}}')")
    assert session.connection.fileno() > _SELECT_MAX
    assert session.receive(60) == {"reply": {}}
    session.end()
    monkeypatch.setattr(boot, "_FROM_FOLDER", 'print(\'{"reply": {"other": 7}}\')')
    monkeypatch.setattr(settings, "AGENT_START_SECONDS", 60)
    assert local.start_agent("many", "localhost") == 7


def start_session(program: str) -> Session:
    host = Host("alpha", "10.0.0.1", connect="env")
    return Session(host, CommandConnector(host), [sys.executable, "-c", program])


def test_a_greeting_whose_rest_does_not_arrive() -> None:
    connection, agent = socket.socketpair()
    with agent:
        agent.sendall(b"tfcluster")
        with pytest.raises(HostUnreachableError, match="not answered within"):
            RemoteChannel(connection, "alpha", 1, lambda: False, str).read_greeting(0.1)


def test_a_host_that_prints_without_end_after_a_message() -> None:
    session = start_session(
        "print('tfcluster> {\"step\": 0}', flush=True)\nimport os\nwhile True: os.write(1, b'y\\n' * 9999)"
    )
    assert session.receive(60) == {"step": 0}
    with pytest.raises(HostUnreachableError, match=r"no response within 1 s\n  y"):
        session.receive(1.0)
    session.end()


def test_a_host_that_does_not_read_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "REMOTE_REPLY_SECONDS", 0.1)
    session = start_session("import time; time.sleep(600)")
    with pytest.raises(HostUnreachableError, match="no response within"):
        session.send(bytes(1 << 24))
    session.end()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_an_agent_that_dies_in_its_imports_and_one_without_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_FROM_FOLDER", "import no_such_module")
    with pytest.raises(ClusterError) as caught:
        local.start_agent("early", "localhost")
    assert caught.value.message == (
        "the agent exited before it listened (exit code 1): ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert local.connect("nobody", "localhost") is None


def test_an_agent_that_reports_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ClusterError("no disk", hint="buy one", exit_code=ExitCode.UNHEALTHY).to_json()
    monkeypatch.setattr(boot, "_FROM_FOLDER", f"import json; print(json.dumps({{'error': {error!r}}}))")
    with pytest.raises(ClusterError) as caught:
        local.start_agent("failing", "localhost")
    assert caught.value.to_json() == error


def test_an_agent_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_FROM_FOLDER", "import signal; signal.pause()")
    monkeypatch.setattr(settings, "AGENT_START_SECONDS", 0.1)
    with pytest.raises(ClusterError) as caught:
        local.start_agent("mute", "localhost")
    match = re.fullmatch(r"the agent \(pid (\d+)\) did not become ready within 0\.1 s", caught.value.message)
    assert match, caught.value.message
    os.kill(int(match[1]), signal.SIGKILL)
    os.waitpid(int(match[1]), 0)


@pytest.mark.parametrize("is_known", [False, True])
def test_no_pid_is_named_that_is_not_the_agents(is_known: bool) -> None:
    """The pid in a lock file may be one of another machine, with the same home folder."""
    error = local.AgentProcess("far", "localhost", os.getpid() if is_known else 0).no_socket_error()
    assert "cannot be seen here" in error.message
    assert "on another machine" in error.hint
    assert "kill" not in error.message + error.hint
    assert error.exit_code is ExitCode.UNREACHABLE
