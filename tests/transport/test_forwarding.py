"""The agent's socket, forwarded by ssh: when a session on the host is needed, and how a stale socket is replaced."""

from __future__ import annotations

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

from tests.conftest import mostly_slow, wait_for
from tests.hosts import HERE, SshHosts
from tests.transport.conftest import (
    REQUEST,
    TransportFactory,
    agent_folder,
    agent_pid,
    begin,
    start_command,
    use,
    wait_until_connected,
)
from tfcluster.errors import ClusterError
from tfcluster.paths import SOCKET
from tfcluster.protocol.codec import encode_greeting
from tfcluster.runtime_dir import forwarded_socket_path, ssh_control_path
from tfcluster.transport.remote_transport import RemoteTransport
from tfcluster.transport.ssh import SshConnector


def sockets_here(hosts: SshHosts) -> list[Path]:
    """Everything in the folder for sockets on the machine where commands run."""
    return list((hosts.home(HERE) / "run" / "tfcluster").iterdir())


@contextmanager
def kept_alive(transport: RemoteTransport, hosts: SshHosts) -> Iterator[None]:
    """Have the agent connected, as it would exit after a request otherwise: it has no cluster."""
    process = Path(f"/proc/{agent_pid(transport, hosts)}")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(agent_folder(transport, hosts) / SOCKET))
        connection.sendall(encode_greeting() + REQUEST)
        assert connection.recv(1)  # the agent has accepted the connection: it does not exit when another one ends
        yield
    wait_for(lambda: not process.exists())


def test_one_session_prepares_a_host(hosts: SshHosts, make_transport: TransportFactory) -> None:
    before = hosts.sessions()
    transport = make_transport()
    assert transport.examine().problems == ()
    channel = begin(transport)
    assert {path.stat().st_mode & 0o077 for path in sockets_here(hosts) if path.is_socket()} == {0}
    use(make_transport())
    assert make_transport().has_state()
    assert not make_transport().is_up()
    assert hosts.sessions() - before == 1
    channel.close()
    assert channel.wait_for_end(30)
    transport.disconnect()
    wait_for(lambda: sockets_here(hosts) == [])


@pytest.mark.usefixtures("without_forwarding")
def test_a_server_that_forbids_forwarding_is_asked_once(hosts: SshHosts, make_transport: TransportFactory) -> None:
    before = hosts.sessions()
    transport = make_transport()
    channel = begin(transport)
    assert hosts.sessions() - before == 1
    calls = len(hosts.ssh_calls())
    use(make_transport())
    use(make_transport())
    assert [line for line in hosts.ssh_calls()[calls:] if "-O" in line.split()] == []
    channel.close()
    assert channel.wait_for_end(30)
    transport.disconnect()
    wait_for(lambda: sockets_here(hosts) == [])


def control(transport: RemoteTransport, command: str) -> str:
    """Give a command to the process of the shared connection; return what it answers."""
    path = str(ssh_control_path(transport.cluster, "h0"))
    ssh = ("ssh", "-F", "none", "-S", path, "-O", command, "h0")
    return subprocess.run(ssh, check=False, capture_output=True, text=True, timeout=60).stderr


def remove_socket(transport: RemoteTransport, hosts: SshHosts) -> None:
    forwarded_socket_path(transport.cluster, "h0", "h0").unlink()


def end_master(transport: RemoteTransport, hosts: SshHosts) -> None:
    control(transport, "exit")
    wait_for(lambda: not ssh_control_path(transport.cluster, "h0").exists())


def kill_master(transport: RemoteTransport, hosts: SshHosts) -> None:
    match = re.search(r"pid=(\d+)", control(transport, "check"))
    assert match
    os.kill(int(match[1]), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{match[1]}/fd/0").exists())


def restart_sshd(transport: RemoteTransport, hosts: SshHosts) -> None:
    hosts.kill("h0")
    hosts.start("h0")


@pytest.mark.parametrize(
    "damage", mostly_slow([remove_socket, end_master, kill_master, restart_sshd], fast=[kill_master])
)
def test_a_stale_socket_is_forwarded_again_without_a_session(
    hosts: SshHosts, make_transport: TransportFactory, damage: Callable[[RemoteTransport, SshHosts], None]
) -> None:
    transport = make_transport()
    channel = begin(transport)
    with kept_alive(transport, hosts):
        channel.close()
        sessions = hosts.sessions()
        damage(transport, hosts)
        use(make_transport())
        use(make_transport())
        assert hosts.sessions() == sessions


# Carries the bytes of an ssh, as `nc HOST PORT` does.
_PROXY = """
import os, socket, sys, threading
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send():
    while data := os.read(0, 65536):
        connection.sendall(data)
threading.Thread(target=send, daemon=True).start()
while data := connection.recv(65536):
    os.write(1, data)
"""


def test_the_shared_connection_outlives_the_ssh_that_has_started_its_proxy(
    hosts: SshHosts, make_transport: TransportFactory
) -> None:
    proxy, config = hosts.folder / "proxy.py", hosts.folder / "ssh_config"
    proxy.write_text(_PROXY)
    direct = config.read_text()
    config.write_text(f"{direct}  ProxyCommand {sys.executable} {proxy} %h %p\n")
    try:
        transport = make_transport()
        channel = begin(transport)
        with kept_alive(transport, hosts):
            channel.close()
            sessions = hosts.sessions()
            assert "Master running" in control(transport, "check")
            use(make_transport())
            assert hosts.sessions() == sessions
    finally:
        config.write_text(direct)


@pytest.mark.parametrize(
    "garbage", mostly_slow([b"220 not an agent\r\n", b"[]\n", b'{"version": true}\n'], fast=[b"[]\n"])
)
def test_something_else_in_the_place_of_a_stale_socket_is_passed_over(
    hosts: SshHosts, make_transport: TransportFactory, garbage: bytes
) -> None:
    transport = make_transport()
    channel = begin(transport)
    with kept_alive(transport, hosts):
        channel.close()
        remove_socket(transport, hosts)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(forwarded_socket_path(transport.cluster, "h0", "h0")))
            listener.listen()
            served: list[socket.socket] = []

            def serve() -> None:
                served.append(listener.accept()[0])
                served[0].sendall(garbage)

            thread = threading.Thread(target=serve)
            thread.start()
            use(make_transport())
            thread.join(30)
            served[0].close()
        sessions = hosts.sessions()
        use(make_transport())
        assert hosts.sessions() == sessions, "the agent's socket is forwarded again"


def test_an_agent_that_has_died_is_followed_by_another(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    transport.open(start=True)
    pid = agent_pid(transport, hosts)
    sessions = hosts.sessions()
    os.kill(pid, signal.SIGKILL)
    use(make_transport())
    assert hosts.sessions() - sessions == 1


@pytest.mark.slow
def test_an_agent_with_another_socket_is_found(
    hosts: SshHosts, make_transport: TransportFactory, tmp_path: Path
) -> None:
    channel = begin(make_transport())
    channel.close()
    assert channel.wait_for_end(30)
    folder = tmp_path / "with: a \\ colon"
    folder.mkdir(mode=0o700)
    moved = make_transport(env={"XDG_RUNTIME_DIR": str(folder)})
    channel = begin(moved)
    sessions = hosts.sessions()
    use(moved)
    assert hosts.sessions() == sessions
    channel.close()
    assert channel.wait_for_end(30)


@pytest.mark.parametrize("name", mostly_slow(["long" * 50, "100%", "$HOME"], fast=["$HOME"]))
def test_other_folders_for_sockets(
    hosts: SshHosts, make_transport: TransportFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    transport = make_transport(env={"XDG_RUNTIME_DIR": str(folder)})
    channel = begin(transport)
    use(transport)
    channel.close()
    assert channel.wait_for_end(30)
    transport.disconnect()


@pytest.mark.slow
def test_commands_that_start_at_once_share_a_socket(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    channel = begin(transport)  # the agent stays
    sessions = hosts.sessions()
    remove_socket(transport, hosts)
    commands = [start_command(transport, hosts, start=False) for _ in range(5)]
    for command in commands:
        wait_until_connected(command)
    for command in commands:
        command.communicate()
        assert command.returncode == 0
    assert hosts.sessions() == sessions
    channel.close()
    assert channel.wait_for_end(30)


@pytest.mark.slow
def test_a_record_that_cannot_be_read_is_ignored(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    transport.examine()
    (record,) = (path for path in sockets_here(hosts) if path.suffix == ".json")
    for text in ("", "[]", "{", '{"socket": 1}', '{"socket": "/nowhere", "pid": 1, "is_forwardable": true}'):
        record.write_text(text)
        use(transport)


def test_without_a_private_folder_nothing_is_forwarded(
    hosts: SshHosts, make_transport: TransportFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = hosts.folder / "shared" / "tfcluster"
    shared.mkdir(parents=True)
    shared.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared.parent))
    with pytest.raises(ClusterError, match="not a folder that only you can enter"):
        make_transport().open(start=True)


@pytest.mark.slow
def test_the_record_is_what_was_written(hosts: SshHosts, make_transport: TransportFactory) -> None:
    assert SshConnector(make_transport().cluster, hosts.host("h0")).read_agent() is None
