"""The forwarder between the hosts of a private cluster: what it carries, and whom it refuses."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.processes.forwarders import ForwardingHost, forwarding_hosts, write_certificate
from tfcluster import settings
from tfcluster.client.preflight.certificates import Authority
from tfcluster.core.forwarding import Forwarder
from tfcluster.processes.forwarder import loaded_path

pytestmark = pytest.mark.needs("root")

Hosts = dict[str, ForwardingHost]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with forwarding_hosts(tmp_path_factory.mktemp("forwarders"), "a", "b", start=True) as made:
        yield made


@contextmanager
def sending(*ends: socket.socket, data: bytes) -> Iterator[None]:
    """Send data from each of these ends, and end its direction, in threads meanwhile."""

    def send(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    senders = [threading.Thread(target=send, args=(each,)) for each in ends]
    for sender in senders:
        sender.start()
    yield
    for sender in senders:
        sender.join()


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side has ended its direction."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@contextmanager
def connected(hosts: Hosts) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from host a to the task of host b, as each side has it."""
    with (
        hosts["b"].listen() as listener,
        hosts["a"].connect(hosts["b"].task_port) as client,
        listener.accept()[0] as server,
    ):
        server.settimeout(60)
        yield client, server


def test_bytes_go_both_ways_and_each_direction_ends_by_itself(hosts: Hosts) -> None:
    data = os.urandom(3_000_001)
    with connected(hosts) as (client, server):
        with sending(client, data=data):
            assert read_all(server) == data
        with sending(server, data=data[::-1]):
            assert read_all(client) == data[::-1]


def test_both_directions_at_once_do_not_block_each_other(hosts: Hosts) -> None:
    data = os.urandom(8_000_000)
    received: list[bytes] = []
    with connected(hosts) as (client, server), sending(client, server, data=data):
        reader = threading.Thread(target=lambda: received.append(read_all(server)))
        reader.start()
        assert read_all(client) == data
        reader.join()
    assert received == [data]


def test_a_connection_that_one_side_cuts_is_cut_at_the_other(hosts: Hosts) -> None:
    with connected(hosts) as (client, server):
        client.sendall(b"a question")
        assert server.recv(100) == b"a question"
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


@pytest.mark.parametrize("end", ["without an alert", "with close_notify"])
def test_a_connection_that_ends_in_the_middle_of_a_block_is_cut_and_not_ended(hosts: Hosts, end: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(hosts["a"].folder / "a.pem")
    with hosts["b"].listen() as listener, context.wrap_socket(hosts["b"].reach()) as other:
        other.sendall(struct.pack("!HI", hosts["b"].task_port, 100) + b"the first ten")
        with listener.accept()[0] as server:
            server.settimeout(60)
            assert server.recv(100) == b"the first ten"
            if end == "with close_notify":
                with contextlib.suppress(OSError):
                    other.unwrap()
            else:
                other.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionResetError):
                server.recv(100)


def test_a_connection_to_a_task_that_does_not_run_is_cut(hosts: Hosts) -> None:
    with hosts["a"].connect(hosts["b"].task_port) as client, pytest.raises(ConnectionResetError):
        client.recv(1)


def test_threads_and_descriptors_end_with_their_connections(hosts: Hosts) -> None:
    def used() -> list[int]:
        return [count for host in hosts.values() for count in (host.threads(), host.descriptors())]

    wait_for(lambda: [host.threads() for host in hosts.values()] == [1, 1])
    before = used()
    for _ in range(5):
        with connected(hosts) as (client, server):
            client.close()
            assert read_all(server) == b""
    wait_for(lambda: used() == before)


def test_the_kernel_notices_when_the_other_host_is_gone(hosts: Hosts) -> None:
    with connected(hosts) as (client, server):
        client.sendall(b"a question")
        assert server.recv(100) == b"a question"

        def timers() -> list[tuple[str, bool]]:
            found = [row[5].split(":") for row in tcp_rows(established=hosts["b"].port)]
            return [(kind, int(hundredths, 16) <= 100 * settings.LINK_SECONDS) for kind, hundredths in found]

        # All has been acknowledged (1). Both ends have the timer that sends probes (2), and soon.
        assert wait_for(lambda: "01" not in dict(timers()) and timers()) == [("02", True)] * 2


def tcp_rows(*, established: int) -> list[list[str]]:
    """The rows of the kernel's tables for established connections from or to a port."""
    lines = [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    rows = [line.split() for line in lines]
    port = f":{established:04X}"
    return [row for row in rows if row[3] == "01" and (row[1].endswith(port) or row[2].endswith(port))]


def test_a_forwarder_reports_what_it_has_loaded(hosts: Hosts) -> None:
    config = hosts["a"].config
    digest = hashlib.sha256(config.read_bytes()).hexdigest()
    wait_for(lambda: loaded_path(config).read_text() == digest)


def ask(host: ForwardingHost, certificate: Path | None, port: int) -> bytes:
    """Ask a host's forwarder for a port as a stranger does; return what it answers, empty if it hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    with (
        socket.create_connection(("127.0.0.1", host.port), 60) as plain,
        contextlib.suppress(ssl.SSLError, ConnectionError),
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(struct.pack("!HI", port, 5) + b"hello")
        return connection.recv(100)
    return b""


@contextmanager
def hanging_up(listener: socket.socket) -> Iterator[list[str]]:
    """Accept and close connections in a thread meanwhile; the list gets an entry for each."""
    accepted: list[str] = []
    ended = threading.Event()
    listener.settimeout(0.1)

    def hang_up() -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError), listener.accept()[0]:
                accepted.append("a connection")

    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        yield accepted
    finally:
        ended.set()
        thread.join()


_REFUSALS = {
    "none": "refused 127.0.0.1: it has no certificate",
    "self-made": "refused 127.0.0.1: its certificate is not from this cluster",
    "expired": "refused 127.0.0.1: its certificate is not valid: certificate has expired",
    "another cluster's": "refused 127.0.0.1: its certificate is not from this cluster",
    "a stranger's name": "from 127.0.0.1 to port 3001: refused: its certificate is of 'c', which is not in the cluster",
    "its own": "from 127.0.0.1 to port 3001: refused: its certificate is of 'b', which is not in the cluster",
}


@pytest.mark.parametrize("kind", _REFUSALS)
def test_a_stranger_is_refused(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    own = Authority.load(hosts["b"].folder / "authority.pem")
    if kind == "expired":
        monkeypatch.setattr(settings, "CERTIFICATE_DAYS", -1)
    authority = Authority.create("other") if kind in ("self-made", "another cluster's") else own
    certificate = authority.issue({"a stranger's name": "c", "its own": "b"}.get(kind, "a"))
    if kind == "another cluster's":
        certificate = replace(certificate, authority=own.pem)
    path = None if kind == "none" else write_certificate(tmp_path / "stranger.pem", certificate)
    with hosts["b"].listen() as listener:
        with hanging_up(listener) as accepted:
            assert ask(hosts["b"], path, hosts["b"].task_port) == b""
        assert accepted == [], "nothing reaches the task"
        wait_for(lambda: _REFUSALS[kind] in hosts["b"].log)
        # The port does accept a host of the cluster.
        client = hosts["a"].connect(hosts["b"].task_port)
        listener.settimeout(60)
        listener.accept()[0].close()
        client.close()


def test_an_older_tls_is_refused(hosts: Hosts) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(hosts["a"].folder / "a.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with hosts["b"].reach() as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)
    wait_for(lambda: "refused 127.0.0.1: it does not speak TLS 1.3" in hosts["b"].log)


def test_a_host_reaches_no_port_but_those_of_tasks(hosts: Hosts) -> None:
    with hosts["b"].inside(lambda: socket.create_server(("127.0.0.1", 0))) as other:
        with hanging_up(other) as accepted:
            assert ask(hosts["b"], hosts["a"].folder / "a.pem", other.getsockname()[1]) == b""
        assert accepted == []
    assert "refused: a asks for a port that is no task's" in hosts["b"].log


def test_a_host_that_answers_for_another_one_is_refused(tmp_path: Path) -> None:
    with forwarding_hosts(tmp_path, "a", "b", "c") as made:
        a, b, c = made.values()
        # Where a looks for b, c answers, which has a certificate of the cluster too.
        places = {name: host.place() for name, host in made.items()}
        a.write_config({**places, "b": Forwarder("127.0.0.1", c.port, b.place().ports)})
        a.start()
        c.start()
        with a.connect(b.task_port) as client, pytest.raises(ConnectionResetError):
            client.recv(1)
        assert f"connection to port {b.task_port} of b, 127.0.0.1: it has the certificate of 'c'" in a.log


@dataclass
class Silence:
    """Two hosts, and connections to `b` that say nothing; `before` is the descriptors that it had without them."""

    hosts: dict[str, ForwardingHost]
    before: int
    connections: list[socket.socket]


@contextmanager
def silent_connections(folder: Path, seconds: float) -> Iterator[Silence]:
    """Make connections that may be silent for a number of seconds."""
    with forwarding_hosts(folder, "a", "b") as made, contextlib.ExitStack() as stack:
        made["b"].environment["TEST_SETTINGS"] = json.dumps({"LINK_CONNECT_SECONDS": seconds})
        for host in made.values():
            host.start()
        before, address = made["b"].descriptors(), ("127.0.0.1", made["b"].port)
        silent = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(200)]
        yield Silence(made, before, silent)


def test_silent_connections_do_not_keep_hosts_from_connecting(tmp_path: Path) -> None:
    with silent_connections(tmp_path, 3600.0) as silence:
        assert silence.connections[0].recv(1) == b"", "another one from its address has replaced the oldest one"
        host = silence.hosts["b"]
        with connected(silence.hosts) as (client, server):
            client.sendall(b"in spite of them")
            assert server.recv(100) == b"in spite of them"
            assert host.threads() == 2
            assert host.descriptors() <= silence.before + settings.FORWARD_ADMISSIONS_MAX // 8 + 2


def test_silent_connections_end(tmp_path: Path) -> None:
    with silent_connections(tmp_path, 1.0) as silence:
        for each in silence.connections:
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b""
        wait_for(lambda: silence.hosts["b"].descriptors() <= silence.before)


class Recorder:
    """Stands between two forwarders and records what they send each other."""

    def __init__(self, port: int) -> None:
        self.recorded = b""
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # closed in the end
            near, _ = self._listener.accept()
            with near, socket.create_connection(("127.0.0.1", self._target)) as far:
                back = threading.Thread(target=self._copy, args=(far, near))
                back.start()
                self._copy(near, far)
                back.join()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.recorded += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def test_what_is_sent_between_hosts_cannot_be_read(tmp_path: Path) -> None:
    tensor = struct.pack("<4f", 1.5, -2.25, 3.125, 1e9) * 25_000
    with forwarding_hosts(tmp_path, "a", "b") as made, contextlib.closing(Recorder(made["b"].port)) as recorder:
        places = {name: host.place() for name, host in made.items()}
        made["a"].write_config({**places, "b": replace(places["b"], port=recorder.port)})
        for host in made.values():
            host.start()
        with connected(made) as (client, server), sending(client, data=tensor):
            assert read_all(server) == tensor
        assert len(recorder.recorded) > len(tensor)
        assert tensor[:16] not in recorder.recorded
        assert b"\x16\x03" in recorder.recorded  # a handshake of TLS


def test_a_change_of_the_files_leaves_connections_alone_and_a_killed_forwarder_serves_again(tmp_path: Path) -> None:
    with forwarding_hosts(tmp_path, "a", "b", start=True) as made:
        a, b = made.values()
        with connected(made) as (client, server):
            b.task_port = 3100
            authority = Authority.create("renewed")
            for name, host in made.items():
                write_certificate(host.folder / f"{name}.pem", authority.issue(name))
                host.write_config({name: each.place() for name, each in made.items()})
                assert host.process is not None
                host.process.send_signal(signal.SIGHUP)

            def reaches_the_new_port() -> bool:
                with b.listen() as listener, contextlib.suppress(OSError), a.connect(3100) as new:
                    new.sendall(b"new")
                    listener.settimeout(0.5)
                    with listener.accept()[0] as accepted:
                        return accepted.recv(3) == b"new"
                return False

            wait_for(reaches_the_new_port)
            client.sendall(b"still here")
            assert server.recv(100) == b"still here"
            b.stop()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        b.start()
        with connected(made) as (client, server):
            client.sendall(b"again")
            assert server.recv(100) == b"again"
