"""Two hosts with an sshd each, and transports to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.hosts import SshHosts, ssh_hosts
from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.protocol.api import encode_request
from tfcluster.protocol.api.runs import RunsReply, RunsRequest
from tfcluster.protocol.codec import encode
from tfcluster.transport.channel import Channel
from tfcluster.transport.remote_transport import RemoteTransport

TransportFactory = Callable[..., RemoteTransport]
REQUEST = encode(encode_request(RunsRequest(None)))


def begin(transport: RemoteTransport) -> Channel:
    """Start a command that goes on. Its agent exits with it, as it does not wait for the first request any more."""
    channel = transport.open(start=True)
    channel.send(REQUEST)
    return channel


def use(transport: RemoteTransport) -> None:
    """Send a request to the agent, as a command does."""
    assert AgentClient(transport).call(RunsRequest(None), start=True) == RunsReply(())


# Connects to an agent, sends a request, says so when the agent has greeted it, and ends with its input.
_COMMAND = """
import json, sys
from tfcluster.core.hosts import Host
from tfcluster.transport.remote_transport import RemoteTransport
cluster, host, start = json.loads(sys.argv[1])
channel = RemoteTransport(cluster, Host(**host)).open(start=start)
channel.send(bytes.fromhex(sys.argv[2]))
print(json.loads(channel.receive(30).splitlines()[0])["version"], flush=True)
sys.stdin.read()
"""


def start_command(transport: RemoteTransport, hosts: SshHosts, *, start: bool) -> subprocess.Popen[bytes]:
    """Start a command in a process of its own, which connects to the agent on h0."""
    host = {"name": "h0", "address": hosts.address("h0"), "ssh": "h0", "python": sys.executable, "setup": []}
    arguments = [sys.executable, "-c", _COMMAND, json.dumps([transport.cluster, host, start]), REQUEST.hex()]
    return subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def wait_until_connected(command: subprocess.Popen[bytes]) -> None:
    assert command.stdout is not None
    assert command.stdout.readline() != b""


def agents(transport: RemoteTransport, hosts: SshHosts) -> list[int]:
    """The pids of the agents of a cluster, as `ps` shows them."""
    title = f"tfcluster: {transport.cluster} agent"
    return [pid for pid, line in hosts.processes().items() if line.startswith(title)]


def agent_pid(transport: RemoteTransport, hosts: SshHosts) -> int:
    (pid,) = agents(transport, hosts)
    return pid


def agent_folder(transport: RemoteTransport, hosts: SshHosts) -> Path:
    """Where the agent on a transport's host keeps its state."""
    return hosts.home(transport.host) / "state" / "tfcluster" / transport.cluster / transport.host


@pytest.fixture(scope="session")
def shared_hosts(needs_sshd: None) -> Iterator[SshHosts]:
    """Hosts h0 and h1, from the first test of a worker that needs them to its last test."""
    with ssh_hosts("h0", "h1") as ssh:
        yield ssh


@pytest.fixture(scope="module")
def hosts(shared_hosts: SshHosts) -> Iterator[SshHosts]:
    """Hosts h0 and h1, as this process's ssh knows them. Tests leave them reachable; modules leave no process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in shared_hosts.environment.items():
            patch.setenv(name, value)
        yield shared_hosts
        for pid, title in shared_hosts.processes().items():
            if title.startswith("tfcluster: ") and " agent on " in title:  # it waits for a command's first request
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        shared_hosts.check_leftovers()


@pytest.fixture
def make_transport(hosts: SshHosts) -> Iterator[TransportFactory]:
    """Make transports by a host's name and its other fields in the topology. Each test has a cluster of its own."""
    cluster = f"c{uuid.uuid4().hex[:8]}"
    transports: list[RemoteTransport] = []

    def make(name: str = "h0", **more: Any) -> RemoteTransport:
        transports.append(RemoteTransport(cluster, hosts.host(name, **more)))
        return transports[-1]

    yield make
    for transport in transports:
        transport.disconnect()


@pytest.fixture
def use_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ssh use the file `config` in the test's folder, which has it offer the key `key` there."""
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path / "config"} "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path / 'key'}\nIdentitiesOnly yes\n")
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
