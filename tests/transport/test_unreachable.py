"""Hosts that cannot be reached: real ones, each in its own way, told in bounded time with what to type."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import wait_for
from tests.hosts import SshHosts
from tests.transport.conftest import Reaching
from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport.base import HostUnreachableError
from tfcluster.transport.ssh import SshTransport

_SILENT = """
import socket, sys
listener = socket.create_server((sys.argv[1], 22))
kept = []
while True:
    kept.append(listener.accept())
"""


def failure(there: SshTransport) -> HostUnreachableError:
    """What every way of asking an unreachable host comes to."""
    with pytest.raises(HostUnreachableError) as caught:
        there.open(start=True)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert caught.value.host == there.host
    (problem,) = there.examine().problems
    assert isinstance(problem, HostUnreachableError)
    return caught.value


@pytest.fixture
def impatience() -> Iterator[pytest.MonkeyPatch]:
    """A test that is about nothing coming need not wait as long as a user whose host may be far away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "SSH_CONNECT_SECONDS", 1)
        yield patch


def test_an_unknown_host_key(hosts: SshHosts, reach: Reaching) -> None:
    hosts.know("h1")
    try:
        error = failure(reach())
    finally:
        hosts.know(*hosts.names)
    assert "its host key is not known here" in error.message
    assert "Type `ssh h0` once" in error.hint


def test_a_changed_host_key(hosts: SshHosts, reach: Reaching) -> None:
    hosts.know("h0", key="other_host_key")
    try:
        error = failure(reach())
    finally:
        hosts.know(*hosts.names)
    assert "another host key than the one known here" in error.message
    assert f"line 1 of {hosts.folder}/known_hosts" in error.hint


def test_a_key_that_is_not_accepted(hosts: SshHosts, reach: Reaching) -> None:
    hosts.use_key("other_user_key")
    try:
        error = failure(reach())
    finally:
        hosts.use_key("user_key")
    assert "none of your keys is accepted" in error.message
    assert "Permission denied (publickey" in error.message
    assert "`ssh -v h0`" in error.hint


def test_a_name_that_nobody_knows(reach: Reaching) -> None:
    error = failure(reach(ssh="nobody.invalid"))
    assert "Could not resolve hostname nobody.invalid" in error.message


def test_a_destination_is_no_option(reach: Reaching, hosts: SshHosts) -> None:
    evidence = hosts.folder / "evidence"
    failure(reach(ssh=f"-oProxyCommand=touch {evidence}"))
    assert not evidence.exists()


def test_no_sshd(hosts: SshHosts, reach: Reaching) -> None:
    hosts.kill("h0")
    try:
        error = failure(reach())
    finally:
        hosts.start("h0")
    assert "Connection refused" in error.message
    assert "Is sshd running there" in error.hint


def test_a_host_that_is_cut_off(hosts: SshHosts, reach: Reaching, impatience: pytest.MonkeyPatch) -> None:
    hosts.network.unplug("h0")
    try:
        error = failure(reach())
    finally:
        hosts.network.plug_in("h0")
    assert "firewall" in error.hint, error.message
    impatience.undo()
    assert reach().is_up() is False


@contextmanager
def silent_host(hosts: SshHosts, name: str) -> Iterator[None]:
    """A host on which something takes connections and says nothing."""
    hosts.kill(name)
    command = hosts.network[name].command(sys.executable, "-c", _SILENT, hosts.address(name))
    with subprocess.Popen(command) as listener:
        try:
            wait_for(lambda: ":22 " in hosts.run(name, "ss", "-Hltn"))
            yield
        finally:
            listener.kill()
    hosts.start(name)


@pytest.mark.usefixtures("impatience")
def test_a_host_that_never_answers(hosts: SshHosts, reach: Reaching) -> None:
    with silent_host(hosts, "h0"):
        error = failure(reach())
    assert "timed out" in error.message


def test_a_host_whose_shell_never_answers(hosts: SshHosts, reach: Reaching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SSH_FIRST_MESSAGE_SECONDS", 0.5)
    profile = hosts.home("h0") / ".bashrc"
    profile.write_text("exec sleep 1000\n")
    try:
        with pytest.raises(HostUnreachableError) as caught:
            reach().is_up()
    finally:
        profile.unlink()
    assert "nothing has come from it within 0.5 s" in caught.value.message
    assert "`ssh h0 true` tells" in caught.value.hint
    hosts.kill("h0")
    hosts.start("h0")
    wait_for(lambda: not killed(hosts))


def killed(hosts: SshHosts) -> list[int]:
    """What still runs on the hosts, and no longer does."""
    found = list(hosts.processes())
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def test_no_ssh_on_this_machine(reach: Reaching, monkeypatch: pytest.MonkeyPatch) -> None:
    there = reach()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterError, match=r"cannot run ssh: No such file or directory"):
        there.is_up()
