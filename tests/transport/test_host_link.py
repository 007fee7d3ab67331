"""The link process as a real one: it keeps one of several sessions at once, and ends what it keeps."""

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, wait_for
from tfcluster import settings
from tfcluster.core.hosts import Host
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.runtime_dir import link_socket_path
from tfcluster.transport.channel import connect_unix
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.link.host_link import HostLink

HOST = Host("box", "10.0.0.1", connect="nothing")
CODE = "1234"


class Session:
    """In place of a session on a host: a process whose streams the test has."""

    def __init__(self) -> None:
        # A shell with a child, as of a script, or of the proxy of an ssh.
        self._process = subprocess.Popen(
            ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        self.child = ProcessHandle.from_pid(int(self._process.stdout.readline()))
        self.pid = self._process.pid
        self.connection, self.on_host = socket.socketpair()

    def release(self) -> None:
        self.connection.close()

    def end(self) -> None:
        self.connection.close()
        os.killpg(self.pid, signal.SIGKILL)

    def is_kept(self) -> bool:
        """Whether the link process has not closed the streams."""
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
    """A link of a cluster whose link process is not started yet, and has ended after the test."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))
    made = HostLink("demo", HOST, CODE)
    yield made
    made.close()
    wait_for(lambda: not link_socket_path("demo", CODE).exists())


def keep(link: HostLink, session: Session) -> None:
    like_a_session: Any = session
    link.keep(like_a_session)


def test_what_a_session_has_started_ends_with_the_link(link: HostLink) -> None:
    session = Session()
    keep(link, session)
    assert not link.has_lost_host()
    link.close()
    wait_for(session.has_ended)
    assert session.child is not None
    wait_for(lambda: session.child is not None and not session.child.is_alive())
    session.clean_up()


def test_of_sessions_that_are_handed_over_at_once_one_is_kept(link: HostLink) -> None:
    sessions = [Session() for _ in range(4)]
    threads = [threading.Thread(target=keep, args=[link, session]) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: sum(session.is_kept() for session in sessions) == 1)
    wait_for(lambda: sum(session.has_ended() for session in sessions) == 3)
    link.close()
    wait_for(lambda: all(session.has_ended() for session in sessions))
    for session in sessions:
        session.clean_up()


def link_process() -> ProcessHandle:
    """The link process, which this process has started."""
    children = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    handles = [ProcessHandle.from_pid(pid) for pid in children]
    (found,) = [each for each in handles if each is not None and each.title() == "tfcluster: demo connections"]
    return found


def test_a_link_that_nobody_uses_ends_and_the_process_with_it(link: HostLink, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 1.0
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "changed"))
    monkeypatch.setenv("TEST_SETTINGS", json.dumps({"SSH_PERSIST_SECONDS": seconds, "HOST_LINK_CHECK_SECONDS": 0.1}))
    session = Session()
    keep(link, session)
    uses = [link.connect({"request": "time"}) for _ in range(2)]
    for use in uses:
        assert use is not None
        time.sleep(1.5 * seconds)
        assert not link.has_lost_host(), "it carries a connection yet"
        use.close()
    session.on_host.shutdown(socket.SHUT_WR)  # nothing answers there: the connections are not ended by the host
    wait_for(lambda: not link_socket_path("demo", CODE).exists())
    wait_for(session.has_ended)
    session.clean_up()


def test_a_process_whose_socket_was_removed_ends_with_what_it_carries(link: HostLink) -> None:
    session = Session()
    keep(link, session)
    use = link.connect({"request": "time"})
    assert use is not None
    process = link_process()
    link_socket_path("demo", CODE).unlink()
    later = Session()
    keep(link, later)
    assert session.is_kept(), "it carries a connection yet"
    use.close()
    session.on_host.shutdown(socket.SHUT_WR)
    wait_for(session.has_ended)
    wait_for(lambda: not process.is_alive())
    assert later.is_kept()
    link.close()
    wait_for(later.has_ended)
    for each in (session, later):
        each.clean_up()


def test_hosts_that_are_reached_in_another_way_have_links_of_their_own(link: HostLink) -> None:
    session = Session()
    keep(link, session)
    assert not HostLink("demo", HOST, CODE).has_lost_host()
    for other in ("other code", CODE):
        host = HOST if other != CODE else replace(HOST, env={"A": "1"})
        assert HostLink("demo", host, other).has_lost_host()
    link.close()
    wait_for(session.has_ended)
    session.clean_up()


def test_a_link_process_without_descriptors_says_so_and_answers_when_it_has_some_again(link: HostLink) -> None:
    session = Session()
    keep(link, session)
    pid = link_process().pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir(f"/proc/{pid}/fd")))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 2, hard))
    taken = [connect_unix(link_socket_path("demo", CODE)) for _ in range(highest + 3)]
    assert all(taken)
    for _ in range(2):
        with pytest.raises(HostUnreachableError, match=rf"no file descriptor left, of at most {highest + 2}\n"):
            HostLink("demo", HOST, CODE).connect({"request": "time"})
    for each in taken:
        assert each is not None
        each.close()

    def answers() -> bool:
        try:
            return not HostLink("demo", HOST, CODE).has_lost_host()
        except HostUnreachableError:  # it has not closed all of them yet
            return False

    wait_for(answers)
    assert session.is_kept()
    link.close()
    wait_for(session.has_ended)
    session.clean_up()


def test_a_link_process_that_was_silent_and_then_killed_is_followed_by_another(
    link: HostLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HOST_LINK_REPLY_SECONDS", 0.5)
    sessions = [Session(), Session()]
    keep(link, sessions[0])
    pid = link_process().pid
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
