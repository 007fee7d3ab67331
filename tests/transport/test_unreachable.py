"""Hosts that cannot be reached, each for its own reason: an error in bounded time that says what to type."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.conftest import wait_for
from tests.hosts import SshHosts
from tests.transport.conftest import TransportFactory
from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.remote_transport import RemoteTransport

SLOW = pytest.mark.slow

_BEGINS_TO_LOG_IN = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 22))
print(connection.recv(100).decode().strip(), flush=True)
time.sleep(1000)
"""
_SILENT = """
import socket, sys
listener = socket.create_server((sys.argv[1], 22))
connections = []
while True:
    connections.append(listener.accept())
"""


def failure(transport: RemoteTransport) -> HostUnreachableError:
    """Return the error of an unreachable host, which is the same for each request."""
    with pytest.raises(HostUnreachableError) as caught:
        transport.open(start=True)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert caught.value.host == transport.host
    (problem,) = transport.examine().problems
    assert isinstance(problem, HostUnreachableError)
    return caught.value


@pytest.fixture
def impatience() -> Iterator[pytest.MonkeyPatch]:
    """A test that is about nothing coming need not wait as long as a user whose host may be far away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "SSH_CONNECT_SECONDS", 1)
        yield patch


@pytest.mark.parametrize(
    ("spoil", "message", "hint"),
    [
        (lambda hosts: hosts.know("h1"), "its host key is not known here", "Type `ssh h0` once"),
        (
            lambda hosts: hosts.know("h0", key="other_host_key"),
            "its host key differs from the one known here",
            "line 1 of FOLDER/known_hosts",
        ),
        (
            lambda hosts: hosts.use_key("other_user_key"),
            "a password, because none of your keys is accepted (root@ADDRESS: Permission denied (publickey,password",
            "`ssh-copy-id h0`",
        ),
    ],
    ids=["unknown host key", "changed host key", "key that is not accepted"],
)
def test_a_key_that_is_refused(
    hosts: SshHosts, make_transport: TransportFactory, spoil: Callable[[SshHosts], None], message: str, hint: str
) -> None:
    spoil(hosts)
    try:
        error = failure(make_transport())
    finally:
        hosts.know(*hosts.names)
        hosts.use_key("user_key")
    assert message.replace("FOLDER", str(hosts.folder)).replace("ADDRESS", hosts.address("h0")) in error.message
    assert hint.replace("FOLDER", str(hosts.folder)) in error.hint


def test_an_unknown_name_and_a_destination_that_looks_like_an_option(
    make_transport: TransportFactory, hosts: SshHosts
) -> None:
    error = failure(make_transport(ssh="nobody.invalid"))
    assert "Could not resolve hostname nobody.invalid" in error.message
    assert "Set `ssh:` in the spec" in error.hint
    evidence = hosts.folder / "evidence"
    failure(make_transport(ssh=f"-oProxyCommand=touch {evidence}"))
    assert not evidence.exists()


def test_no_sshd(hosts: SshHosts, make_transport: TransportFactory) -> None:
    hosts.kill("h0")
    try:
        error = failure(make_transport())
    finally:
        hosts.start("h0")
    assert "Connection refused" in error.message
    assert "Is sshd running there" in error.hint


def test_a_host_that_is_cut_off(
    hosts: SshHosts, make_transport: TransportFactory, impatience: pytest.MonkeyPatch
) -> None:
    hosts.network.unplug("h0")
    try:
        error = failure(make_transport())
    finally:
        hosts.network.plug_in("h0")
    assert "firewall" in error.hint, error.message
    impatience.undo()
    assert make_transport().is_up() is False


@contextmanager
def silent_host(hosts: SshHosts, name: str) -> Iterator[None]:
    """Have something on a host accept connections and send nothing."""
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
def test_a_host_that_never_answers(hosts: SshHosts, make_transport: TransportFactory) -> None:
    with silent_host(hosts, "h0"):
        error = failure(make_transport())
    assert "timed out" in error.message


@pytest.mark.parametrize(
    ("file", "line", "problem"),
    [
        (".bashrc", "exec sleep 1000", "its login shell has not run a command within 4 s"),
        pytest.param(".bashrc", "exec fish", "its login shell has not", marks=[pytest.mark.needs("fish"), SLOW]),
        (".bashrc", "echo no shell here; exit 3", "its login shell ended with exit code 3 before it ran a command"),
        pytest.param(".bash_profile", "exec fish", "bash as a login shell", marks=[pytest.mark.needs("fish"), SLOW]),
        pytest.param(
            ".bash_profile",
            "read answer",
            "bash as a login shell, for `shell:`, has not run a command within 4 s",
            marks=SLOW,
        ),
        (".bash_profile", "exit 0", "bash as a login shell, for `shell:`, ended with exit code 0 before"),
    ],
)
def test_a_startup_file_that_keeps_a_shell_from_the_command_is_named(
    hosts: SshHosts,
    make_transport: TransportFactory,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    line: str,
    problem: str,
) -> None:
    monkeypatch.setattr(settings, "SHELL_SECONDS", 4.0)  # as long as a busy machine takes for the shell before
    profile = hosts.home("h0") / file
    profile.write_text(f"{line}\n")
    transport = make_transport(shell=None if file == ".bashrc" else "true")
    try:
        with pytest.raises(HostUnreachableError) as caught:
            transport.is_up()
        report = transport.examine()
    finally:
        profile.unlink()
    for error in (caught.value, *report.problems):
        assert problem in error.message
        assert f"~/{file}" in error.hint
        assert ("no shell here" in error.message) == ("no shell here" in line)
    hosts.kill("h0")
    hosts.start("h0")
    wait_for(lambda: not killed(hosts))


def test_a_login_that_takes_long_is_not_blamed_on_the_shell(
    hosts: SshHosts, make_transport: TransportFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SHELL_SECONDS", 0.0)
    monkeypatch.setattr(settings, "SSH_FIRST_MESSAGE_SECONDS", 1.0)
    hosts.kill("h0")
    hosts.start(
        "h0", "AuthorizedKeysFile none", "AuthorizedKeysCommand /bin/sleep 10", "AuthorizedKeysCommandUser root"
    )
    try:
        with pytest.raises(HostUnreachableError, match=r"no response within 1 s") as caught:
            make_transport().is_up()
        assert "`ssh h0 true` shows" in caught.value.hint
    finally:
        hosts.kill("h0")
        hosts.start("h0")


@contextmanager
def busy_sshd(hosts: SshHosts, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have a host's sshd accept one login at a time, and begin one that does not end before the process is killed."""
    hosts.kill(name)
    hosts.start(name, "MaxStartups 1:100:1", "LogLevel DEBUG")
    try:
        command = hosts.command(sys.executable, "-c", _BEGINS_TO_LOG_IN, hosts.address(name))
        with subprocess.Popen(command, stdout=subprocess.PIPE) as login:
            try:
                assert login.stdout is not None
                assert login.stdout.readline().startswith(b"SSH-2.0")
                yield login
            finally:
                login.kill()
    finally:
        hosts.kill(name)
        hosts.start(name)


@pytest.mark.parametrize("way", ["direct", pytest.param("ProxyCommand ssh -W %h:%p h1", marks=SLOW)])
def test_an_sshd_with_too_many_logins_is_tried_again(
    hosts: SshHosts, make_transport: TransportFactory, impatience: pytest.MonkeyPatch, way: str
) -> None:
    hosts.use_key("user_key", "" if way == "direct" else f"Host h0\n  {way}\n")
    try:
        with busy_sshd(hosts, "h0" if way == "direct" else "h1") as login:
            error = failure(make_transport())
            assert "sshd refuses the login, probably because too many are in progress" in error.message
            assert "MaxStartups" in error.hint
            impatience.setattr(settings, "SSH_CONNECT_SECONDS", 60)
            before = len(hosts.ssh_calls())
            with ThreadPoolExecutor() as pool:
                report = pool.submit(make_transport().examine)
                wait_for(lambda: len(hosts.ssh_calls()) > before + 2)
                login.kill()
                assert report.result(120).problems == ()
    finally:
        hosts.use_key("user_key")


def killed(hosts: SshHosts) -> list[int]:
    """What still runs on the hosts, and no longer does; an agent ends by itself."""
    pids = [pid for pid, title in hosts.processes().items() if not title.startswith("tfcluster: ")]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def test_no_ssh_on_this_machine(make_transport: TransportFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = make_transport()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterError, match=r"cannot run ssh: No such file or directory"):
        transport.is_up()
