"""The relay as a real process: it keeps sessions of slow hosts, and one of several at once, and ends what it keeps."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT, wait_for
from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.runtime_dir import relay_socket_path
from tfcluster.transport.channel import connect_unix
from tfcluster.transport.relay.host_link import HostLink
from tfcluster.transport.relay.multiplexer import VERSION
from tfcluster.transport.session import _released, release_child

HOST = Host("box", "10.0.0.1", connect="nothing")


class Session:
    """In place of a session on a host: a process whose streams the test has."""

    def __init__(self, seconds: float = 0.0, *, leads_group: bool = True) -> None:
        # A shell with a child, as of a script, or of the proxy of an ssh.
        self._process = subprocess.Popen(
            ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        self.child = ProcessHandle.from_pid(int(self._process.stdout.readline()))
        self.pid = self._process.pid
        self.connection, self.on_host = socket.socketpair()
        self.connector = SimpleNamespace(leads_group=leads_group)
        self._seconds = seconds

    def request(self, name: str, seconds: float) -> dict[str, Any]:
        assert name == "link"
        time.sleep(self._seconds)  # how long the host takes to answer
        return {"is_carried": True}

    def release(self) -> None:
        self.connection.close()

    end = release

    def is_kept(self) -> bool:
        """Whether the relay has not closed the streams."""
        try:
            while self.on_host.recv(1 << 16, socket.MSG_DONTWAIT):  # it asks now and then whether the host is there
                continue
        except BlockingIOError:
            return True
        return False

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def clean_up(self) -> None:
        self.on_host.close()
        if self.child is not None:
            self.child.kill()
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostLink]:
    """A link of a cluster whose relay is not started yet, and has ended after the test."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))
    made = HostLink("demo", HOST)
    yield made
    made.close()
    wait_for(lambda: not relay_socket_path("demo", VERSION).exists())


def keep(link: HostLink, session: Session) -> None:
    like_a_session: Any = session
    link.keep(like_a_session, None)


def test_a_host_that_takes_longer_than_a_relay_without_links_lives_is_kept(link: HostLink) -> None:
    session = Session(seconds=2.5)
    keep(link, session)
    assert not link.has_lost_host()
    link.close()
    wait_for(session.has_ended)
    assert session.child is not None
    wait_for(lambda: session.child is not None and not session.child.is_alive())
    session.clean_up()


def test_of_sessions_that_are_handed_over_at_once_one_is_kept(link: HostLink) -> None:
    sessions = [Session(seconds=0.3) for _ in range(4)]
    threads = [threading.Thread(target=keep, args=[link, session]) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: sum(session.is_kept() for session in sessions) == 1)
    link.close()
    wait_for(lambda: not any(session.is_kept() for session in sessions))
    for session in sessions:
        session.clean_up()


def relay_pid() -> int:
    """The relay, which this process has started."""
    children = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    handles = [ProcessHandle.from_pid(pid) for pid in children]
    (relay,) = [each for each in handles if each is not None and each.title() == "tfcluster: demo connections"]
    return relay.pid


def test_a_link_that_nobody_uses_ends_and_the_relay_with_it(link: HostLink, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 1.0
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "changed"))
    monkeypatch.setenv("TEST_SETTINGS", json.dumps({"SSH_PERSIST_SECONDS": seconds, "RELAY_CHECK_SECONDS": 0.1}))
    session = Session()
    keep(link, session)
    uses = [link.connect_to_port(1) for _ in range(2)]
    for use in uses:
        assert use is not None
        time.sleep(1.5 * seconds)
        assert not link.has_lost_host(), "it carries a connection yet"
        use.close()
    session.on_host.shutdown(socket.SHUT_WR)  # nothing answers there: the connections are not ended by the host
    wait_for(lambda: not relay_socket_path("demo", VERSION).exists())
    wait_for(session.has_ended)
    session.clean_up()


def test_a_relay_without_descriptors_answers_when_it_has_some_again(
    link: HostLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "RELAY_REPLY_SECONDS", 0.5)
    session = Session()
    keep(link, session)
    pid = relay_pid()
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir(f"/proc/{pid}/fd")))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 2, hard))
    taken = [connect_unix(relay_socket_path("demo", VERSION)) for _ in range(highest + 3)]
    assert all(taken)
    assert HostLink("demo", HOST).has_lost_host(), "it does not answer"
    for each in taken:
        assert each is not None
        each.close()
    wait_for(lambda: not HostLink("demo", HOST).has_lost_host())
    assert session.is_kept()
    link.close()
    wait_for(session.has_ended)
    session.clean_up()


def test_a_relay_that_was_silent_and_then_killed_is_followed_by_another(
    link: HostLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "RELAY_REPLY_SECONDS", 0.5)
    sessions = [Session(), Session()]
    keep(link, sessions[0])
    pid = relay_pid()
    os.kill(pid, signal.SIGSTOP)
    assert link.has_lost_host(), "it does not answer"
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not sessions[0].is_kept())
    keep(link, sessions[1])
    assert not link.has_lost_host()
    link.close()
    wait_for(sessions[1].has_ended)
    for session in sessions:
        session.clean_up()


def test_what_was_released_and_has_ended_is_reaped_with_the_next() -> None:
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    for process in processes:
        release_child(process)
        handle = ProcessHandle.from_pid(process.pid)
        assert handle is not None
        handle.kill()
        wait_for(lambda handle=handle: not handle.is_alive())  # type: ignore[misc]
        assert handle.exists(), "it is a zombie"
    first = ProcessHandle.from_pid(processes[0].pid)
    assert first is None
    os.waitpid(processes[1].pid, 0)
    _released.discard(processes[1].pid)


def test_what_an_ssh_has_started_for_others_outlives_it(link: HostLink) -> None:
    session = Session(leads_group=False)
    keep(link, session)
    link.close()
    wait_for(session.has_ended)
    assert session.child is not None
    assert session.child.is_alive()
    session.clean_up()
