"""The connection of a host to the coordinator of its group: who is let in, and who is not."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv4Address

import pytest

from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.errors import ClusterError
from tfcluster.processes.groups.link import (
    GroupLink,
    GroupListener,
    Ports,
    Reserve,
    SignalOrder,
    Start,
    _proof,
    connect,
)

SECRET, OTHER = "ab" * 32, "cd" * 32


class Coordinator:
    """Lets hosts in, in a thread."""

    def __init__(self, *hosts: str) -> None:
        self.poll = select.poll()
        self.listener = GroupListener(SECRET, hosts, None, self.poll)
        self.links: list[GroupLink] = []
        self.address = f"127.0.0.1:{self.listener.port}"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for fd, _ in self.poll.poll(20):
                if (link := self.listener.handle(fd)) is not None:
                    self.links.append(link)

    def link(self) -> GroupLink:
        """Wait for the connection of a host that was accepted; the thread notes it after it has answered the host."""
        wait_for(lambda: self.links)
        (link,) = self.links
        return link

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.listener.close()
        for link in self.links:
            link.close()


def host_link(address: str, host: str) -> closing[GroupLink]:
    return closing(connect(address, SECRET, host))


def dial(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)))


def coordinator(*hosts: str) -> closing[Coordinator]:
    return closing(Coordinator(*hosts))


@contextmanager
def impatience() -> Iterator[None]:
    """A host that is refused need not try again for as long as on a busy network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "LINK_CONNECT_SECONDS", 1.0)
        patch.setattr(settings, "GROUP_RECONNECT_SECONDS", 0.1)
        yield


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(60)
    try:
        while connection.recv(1000):
            continue
    except ConnectionError:
        pass
    return True


def test_orders_and_reports_pass() -> None:
    with coordinator("beta") as at, host_link(at.address, "beta") as link:
        link.send(Ports([1, 2]))
        own = at.link()
        assert own.host == "beta"
        assert own.receive() == [Ports([1, 2])]
        own.send(Reserve())
        own.send(Start(3, {"worker": ["a:1", "b:2"]}))
        received = link.receive() or []
        while len(received) < 2:
            received += link.receive() or []
        assert received == [Reserve(), Start(3, {"worker": ["a:1", "b:2"]})]
        own.close()
        assert link.receive() is None


@pytest.mark.parametrize(("secret", "host"), [(OTHER, "beta"), (SECRET, "gamma")])
def test_a_host_without_the_secret_or_not_of_the_group_is_refused(secret: str, host: str) -> None:
    with coordinator("beta") as at:
        with impatience(), pytest.raises((ClusterError, OSError)):
            connect(at.address, secret, host)
        with host_link(at.address, "beta"):
            assert at.link().host == "beta"


def test_a_host_is_let_in_once() -> None:
    with coordinator("beta") as at, dial(at.address) as early:
        nonce = json.loads(early.recv(1000))["nonce"]
        with host_link(at.address, "beta") as first:
            proof = _proof(SECRET, "host", "beta", nonce, "00")
            early.sendall(json.dumps({"host": "beta", "nonce": "00", "proof": proof}).encode() + b"\n")
            assert is_closed(early), "it connected before the other one, and proves itself after it"
            with impatience(), pytest.raises((ClusterError, OSError)):
                connect(at.address, SECRET, "beta")
            first.send(SignalOrder(2))
            assert at.link().receive() == [SignalOrder(2)]


@pytest.mark.parametrize(
    "sent",
    [
        b"\n",
        b"[]\n",
        b'{"host": 1}\n',
        b'{"host": "beta", "nonce": "", "proof": ""}\n',
        b"x" * (1 << 16),
        json.dumps({"host": "beta", "nonce": "a" * 32, "proof": "0" * 64}).encode() + b"\n",
        b"\xff\xfe\n",
        b'{"host": "beta", "nonce": "\\ud800", "proof": ""}\n',  # text that cannot be encoded
        b'{"host": "beta", "nonce": "", "proof": "\\ud800"}\n',
    ],
)
def test_what_is_no_proof_is_refused(sent: bytes) -> None:
    with coordinator("beta") as at:
        with dial(at.address) as stranger:
            with contextlib.suppress(ConnectionError):  # it is closed before all has been sent
                stranger.sendall(sent)
            assert is_closed(stranger)
        with host_link(at.address, "beta") as link:
            assert link.host == "beta"


def test_a_proof_cannot_be_replayed() -> None:
    with coordinator("beta", "gamma") as at, socket.create_server(("127.0.0.1", 0)) as relay:
        # A relay passes the coordinator's challenge on to a host, and keeps the host's answer.
        def pass_on() -> None:
            with relay.accept()[0] as victim, dial(at.address) as upstream:
                victim.sendall(upstream.recv(1000))
                answers.append(victim.recv(1000))

        answers: list[bytes] = []
        thread = threading.Thread(target=pass_on)
        thread.start()
        with impatience(), pytest.raises((ClusterError, OSError)):
            connect(f"127.0.0.1:{relay.getsockname()[1]}", SECRET, "beta")
        thread.join()
        with dial(at.address) as later:
            later.sendall(answers[0])  # the coordinator has another challenge now
            assert is_closed(later)
        assert at.links == []


def test_what_listens_in_the_coordinators_place_gives_no_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as false:

        def answer() -> None:
            with false.accept()[0] as connection:
                connection.sendall(b'{"nonce": "00"}\n')
                connection.recv(1000)
                connection.sendall(json.dumps({"proof": "0" * 64}).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ClusterError, match="is not the coordinator of the group"):
            connect(f"127.0.0.1:{false.getsockname()[1]}", SECRET, "beta")
        thread.join()


def test_connections_that_say_nothing_do_not_keep_hosts_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "GROUP_ADMISSIONS_MAX", 4)
    monkeypatch.setattr(settings, "GROUP_PROOF_SECONDS", 0.5)
    monkeypatch.setattr(settings, "LINK_CONNECT_SECONDS", 60.0)
    with coordinator("beta") as at:
        silent = [dial(at.address) for _ in range(20)]
        with host_link(at.address, "beta") as link:
            assert link.host == "beta"
        assert is_closed(silent[0])
        for each in silent:
            each.close()


def test_the_port_is_restricted_before_it_listens() -> None:
    poll = select.poll()
    listener = GroupListener(SECRET, ["beta"], [IPv4Address("127.0.0.1")], poll)
    device = listener._listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    listener.close()
    assert device.rstrip(b"\0") == b"lo"
