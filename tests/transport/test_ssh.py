"""Connections to an agent on another host: as to one on this machine, and what can happen to the network."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.descriptors import held_by
from tests.hosts import SshHosts
from tests.transport.conftest import (
    TransportFactory,
    agent_folder,
    agent_pid,
    agents,
    begin,
    start_command,
    use,
    wait_until_connected,
)
from tfcluster import settings
from tfcluster.client.rpc.agent_client import ResponseStream
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import SOCKET
from tfcluster.protocol.api.runs import RunsReply, RunsRequest
from tfcluster.runtime_dir import ssh_control_path
from tfcluster.transport.channel import Channel
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.remote_transport import RemoteTransport

BYTES = 8 << 20


def sessions(hosts: SshHosts) -> list[int]:
    """The processes on the hosts that are their ends of links."""
    return [pid for pid, words in hosts.processes().items() if "session=json" in words]


def agent_socket(transport: RemoteTransport, hosts: SshHosts) -> str:
    """Where the agent of a host listens."""
    return str(agent_folder(transport, hosts) / SOCKET)


@contextmanager
def played(transport: RemoteTransport, hosts: SshHosts, play: Callable[[socket.socket], None]) -> Iterator[None]:
    """An agent on a host that does what the test says with a command's connection, after the greetings."""
    folder = agent_folder(transport, hosts)
    folder.mkdir(parents=True)
    path = folder / SOCKET
    (folder / "journal.json").touch()
    with socket.create_server(str(path), family=socket.AF_UNIX) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                greeting = b""
                while not greeting.endswith(b"\n"):
                    greeting += connection.recv(1)
                connection.sendall(greeting)
                play(connection)

        playing = threading.Thread(target=serve, daemon=True)
        playing.start()
        try:
            yield
        finally:
            playing.join(60)
            path.unlink()
            (folder / "journal.json").unlink()
    assert not playing.is_alive()


def open_played(transport: RemoteTransport) -> Channel:
    """Connect, and receive the greeting."""
    channel = transport.open(start=False)
    while not channel.receive(30).endswith(b"\n"):
        continue
    return channel


def everything_from(channel: Channel) -> bytes:
    data = b""
    while arrived := channel.receive(30):
        data += arrived
    return data


def test_an_agent_is_started_on_the_host_and_answers(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    with pytest.raises(ClusterError) as caught:
        transport.open(start=False)
    assert caught.value.message == f"host 'h0': cluster {transport.cluster!r} is not running"
    assert caught.value.exit_code is ExitCode.NOT_RUNNING
    response = ResponseStream(transport, transport.open(start=True), RunsRequest(None))
    assert agent_pid(transport, hosts)
    assert response.result() == RunsReply(())
    response.close_and_reap()
    wait_for(lambda: (transport.is_up(), transport.has_state()) == (False, False))
    wait_for(lambda: not sessions(hosts))


def test_the_agent_runs_the_code_that_was_sent(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport(env={"WORD": "of the host"})
    channel = begin(transport)
    pid = agent_pid(transport, hosts)
    assert any(path.startswith(f"{hosts.home('h0')}/cache/tfcluster/code/") for path in held_by(pid))
    assert b"\0WORD=of the host\0" in Path(f"/proc/{pid}/environ").read_bytes()
    assert "of the host" not in str(hosts.processes())  # other users see command lines
    channel.close()
    assert channel.wait_for_end(30)


def test_bytes_arrive_as_they_are_both_ways(hosts: SshHosts, make_transport: TransportFactory) -> None:
    """More bytes than all buffers together: a side that does not read makes the other one wait."""
    transport = make_transport()
    data = os.urandom(BYTES)
    all_sent, may_read = threading.Event(), threading.Event()

    def play(connection: socket.socket) -> None:
        may_read.wait(60)
        received = b""
        while len(received) < BYTES:
            received += connection.recv(1 << 16)
        connection.sendall(hashlib.sha256(received).hexdigest().encode() + received)

    def send() -> None:
        assert channel.send(data)
        all_sent.set()

    with played(transport, hosts, play):
        channel = open_played(transport)
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        assert not channel.wait_readable(0.2)
        assert not all_sent.is_set()
        may_read.set()
        sending.join(60)
        answer = everything_from(channel)
        channel.close()
    assert all_sent.is_set()
    assert answer == hashlib.sha256(data).hexdigest().encode() + data


@pytest.mark.slow
def test_a_killed_command_leaves_nothing_on_the_host(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    with start_command(transport, hosts, start=True) as command:
        wait_until_connected(command)
        command.kill()
    transport.disconnect()
    wait_for(lambda: not sessions(hosts))
    wait_for(lambda: not agents(transport, hosts))  # without a command and a cluster, it ends by itself


def test_commands_share_one_connection(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    channels = [begin(transport) for _ in range(2)]
    connections = ("ss", "-Htn", "state", "established", "sport", "=", ":22")
    wait_for(lambda: len(hosts.run("h0", *connections).splitlines()) == 1)  # an earlier test's may have to close yet
    for channel in channels:
        channel.close()
    assert channels[0].wait_for_end(30)
    transport.disconnect()
    wait_for(lambda: hosts.run("h0", *connections) == "")
    transport.disconnect()  # there is nothing more to end


def test_what_exec_runs_shares_a_connection_until_it_is_closed(
    hosts: SshHosts, make_transport: TransportFactory
) -> None:
    transport = make_transport()
    path = ssh_control_path(transport.cluster, "h0")
    logins = hosts.logins("h0")
    for _ in range(2):
        subprocess.run(transport.command_line(["true"], is_terminal=False), check=True)
    assert hosts.logins("h0") - logins == 1
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o077 == 0
    transport.disconnect()
    wait_for(lambda: not path.exists())


def test_a_lost_link_is_noticed_and_used_again(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "SSH_KEEPALIVE_SECONDS", 1)
        patch.setattr(settings, "SSH_KEEPALIVE_PROBES", 5)
        channel = begin(transport)
        patch.setattr(settings, "SSH_CONNECT_SECONDS", 1)
        pid = agent_pid(transport, hosts)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(agent_socket(transport, hosts))
        hosts.network.unplug("h0")
        try:
            everything_from(channel)
            with pytest.raises(HostUnreachableError):
                transport.open(start=False)
        finally:
            hosts.network.plug_in("h0")
            channel.close()
    again = transport.open(start=False)
    assert agent_pid(transport, hosts) == pid
    again.close()
    connection.close()
    assert again.wait_for_end(30)


def test_an_agent_that_hangs(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    channel = begin(transport)
    received = b""
    while received.count(b"\n") < 2:  # the greeting and the reply
        received += channel.receive(60)
    pid = agent_pid(transport, hosts)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(
            HostUnreachableError, match=rf"the agent there \(pid {pid}\) has not answered within 0\.2 s"
        ):
            channel.receive(0.2)
        channel.close()
        assert channel.wait_for_end(0.1) is False
    finally:
        os.kill(pid, signal.SIGCONT)
    channel.close()
    assert channel.wait_for_end(30)


_WORDS = ["a b", "$HOME", "'", '"', "\\", "*", "é"]


def test_a_command_that_joins_its_arguments_gets_one_word(make_transport: TransportFactory) -> None:
    transport = make_transport(ssh=None, connect="ssh {terminal:-t} {host} {command}")
    report = transport.examine()
    assert (report.problems, report.program) == ((), "ssh")
    line = transport.command_line([sys.executable, "-c", "import sys; print(sys.argv[1:])", *_WORDS], is_terminal=False)
    assert line[:2] == ["ssh", "h0"]
    shown = subprocess.run(line, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    assert shown == f"{_WORDS}\n"
    assert transport.command_line(["true"], is_terminal=True)[:3] == ["ssh", "-t", "h0"]
    use(transport)  # then the agent exits


_USERS_OPTIONS = """\
SessionType none
StdinNull yes
ForkAfterAuthentication yes
RemoteCommand tmux
RequestTTY force
PermitLocalCommand yes
LocalCommand echo here
"""


def test_options_of_the_user_for_a_command_or_a_terminal_are_overridden(
    hosts: SshHosts, make_transport: TransportFactory
) -> None:
    hosts.use_key("user_key", _USERS_OPTIONS)
    try:
        transport = make_transport()
        assert transport.examine().problems == ()
        line = transport.command_line(["cat"], is_terminal=False)
        assert subprocess.run(line, capture_output=True, check=True, input=b"it is read").stdout == b"it is read"
    finally:
        hosts.use_key("user_key")


@pytest.fixture
def second_factor(hosts: SshHosts) -> Iterator[None]:
    """The sshd of h0 asks for a code besides a key, and a user on a terminal knows it."""
    hosts.start_with_second_factor("h0")
    yield
    subprocess.run(["ssh", "-O", "exit", "h0"], check=False)
    hosts.use_key("user_key")
    hosts.kill("h0")
    hosts.start("h0")


@pytest.mark.usefixtures("second_factor")
def test_a_second_factor_is_typed_for_the_users_own_connection(
    hosts: SshHosts, make_transport: TransportFactory
) -> None:
    transport = make_transport()
    with pytest.raises(HostUnreachableError) as caught:
        transport.is_up()
    assert "a key alone is not accepted; it requires keyboard-interactive (" in caught.value.message
    once = "Type `ssh h0` once, keep it open, and try again: tfcluster uses its connection."
    options = re.fullmatch(f"Set `(.*)`, `(.*)` and `(.*)` for this host in ~/.ssh/config. {once}", caught.value.hint)
    assert options is not None
    hosts.use_key("user_key", "\n".join(options.groups()).replace("~/.ssh", str(hosts.folder)) + "\n")
    with pytest.raises(HostUnreachableError) as caught:
        make_transport().is_up()
    assert caught.value.hint == once
    subprocess.run(["ssh", "h0", "true"], check=True, env={**os.environ, **hosts.typing_the_code()})
    logins = hosts.logins("h0")
    transport = make_transport()
    assert transport.examine().problems == ()
    line = transport.command_line(["echo", "there"], is_terminal=False)
    assert subprocess.run(line, capture_output=True, check=True).stdout == b"there\n"
    use(transport)
    assert hosts.logins("h0") == logins
    assert subprocess.run(["ssh", "-O", "check", "h0"], check=False).returncode == 0, "it is the user's"
