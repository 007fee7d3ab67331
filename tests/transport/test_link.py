"""The link to a host that ssh reaches: one session there serves all commands, and what is lost of it is made again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
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
    use,
)
from tfcluster.errors import ClusterError
from tfcluster.paths import SOCKET
from tfcluster.protocol.codec import encode_greeting
from tfcluster.runtime_dir import ssh_control_path
from tfcluster.transport.remote_transport import RemoteTransport


def sockets_here(hosts: SshHosts) -> list[Path]:
    """Everything in the folder for sockets on the machine where commands run."""
    return list((hosts.home(HERE) / "run").glob("tfcluster/*"))


def link_process(transport: RemoteTransport, hosts: SshHosts) -> int:
    (pid,) = hosts.pids(f"tfcluster: {transport.cluster} connections")
    return pid


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
    before, earlier = hosts.sessions(), sockets_here(hosts)
    transport = make_transport()
    assert transport.examine().problems == ()
    channel = begin(transport)
    (path,) = {*sockets_here(hosts)} - {*earlier}
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o077 == 0
    use(make_transport())
    assert make_transport().has_state()
    assert not make_transport().is_up()
    assert hosts.sessions() - before == 1
    channel.close()
    assert channel.wait_for_end(30)
    transport.disconnect()
    wait_for(lambda: sockets_here(hosts) == [])


def kill_link_process(transport: RemoteTransport, hosts: SshHosts) -> None:
    os.kill(link_process(transport, hosts), signal.SIGKILL)
    wait_for(lambda: not hosts.pids("session=json"))


def kill_session(transport: RemoteTransport, hosts: SshHosts) -> None:
    (pid,) = [pid for pid, line in hosts.processes().items() if "session=json" in line and "BatchMode" not in line]
    os.kill(pid, signal.SIGKILL)


def restart_sshd(transport: RemoteTransport, hosts: SshHosts) -> None:
    hosts.kill("h0")
    hosts.start("h0")


@pytest.mark.parametrize(
    "damage",
    mostly_slow([kill_link_process, kill_session, restart_sshd], fast=[kill_link_process]),
)
def test_a_link_that_is_lost_is_made_again(
    hosts: SshHosts, make_transport: TransportFactory, damage: Callable[[RemoteTransport, SshHosts], None]
) -> None:
    wait_for(lambda: not hosts.pids("session=json"))  # of earlier tests
    transport = make_transport()
    channel = begin(transport)
    with kept_alive(transport, hosts):
        channel.close()
        sessions = hosts.sessions()
        damage(transport, hosts)
        use(make_transport())
        use(make_transport())
        assert hosts.sessions() - sessions == 1
    make_transport().disconnect()


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


def test_the_proxy_of_an_ssh_ends_with_the_link(hosts: SshHosts, make_transport: TransportFactory) -> None:
    proxy, config = hosts.folder / "proxy.py", hosts.folder / "ssh_config"
    proxy.write_text(_PROXY)
    direct = config.read_text()
    config.write_text(f"{direct}  ProxyCommand {sys.executable} {proxy} %h %p\n")
    try:
        transport = make_transport()
        channel = begin(transport)
        assert hosts.pids(str(proxy))
        channel.close()
        assert channel.wait_for_end(30)
        transport.disconnect()
        wait_for(lambda: not hosts.pids(str(proxy)))
    finally:
        config.write_text(direct)


def test_an_agent_that_has_died_is_followed_by_another(hosts: SshHosts, make_transport: TransportFactory) -> None:
    transport = make_transport()
    transport.open(start=True)
    pid = agent_pid(transport, hosts)
    sessions = hosts.sessions()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())  # the session, which has started it, reaps it
    use(make_transport())
    assert hosts.sessions() == sessions


def test_a_host_that_was_repaired_is_looked_at_again(hosts: SshHosts, make_transport: TransportFactory) -> None:
    python = hosts.folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without the packages that are installed
    python.chmod(0o755)
    (problem, *_) = make_transport(python=str(python)).examine().problems
    assert "TensorFlow is not installed" in problem.message
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    transport = make_transport(python=str(python))
    assert transport.examine().problems == ()
    use(transport)


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
    subprocess.run(transport.command_line(["true"], is_terminal=False), check=True)
    assert ssh_control_path(transport.cluster, "h0").is_socket()
    channel.close()
    assert channel.wait_for_end(30)
    transport.disconnect()


def test_without_a_private_folder_nothing_is_shared(
    hosts: SshHosts, make_transport: TransportFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = hosts.folder / "shared" / "tfcluster"
    shared.mkdir(parents=True)
    shared.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared.parent))
    with pytest.raises(ClusterError, match="not a folder that only you can enter"):
        make_transport().open(start=True)
