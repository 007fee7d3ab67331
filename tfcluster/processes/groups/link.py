"""The connection between a group's coordinator and a host of it; each proves to the other that it belongs there.

Each side answers a random challenge with an HMAC of the group's secret, which the command sent to all hosts. So
an unauthorized process that reaches the coordinator's port, or listens in its place, learns nothing and cannot give
orders. Then each line is one message: an order of the coordinator or a report of a host.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import secrets
import select
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from tfcluster import settings
from tfcluster.core.groups import MemberObservation
from tfcluster.errors import ClusterError
from tfcluster.os.network import Address, bind_free_port, detect_loss
from tfcluster.processes.servers.port_isolation import restrict
from tfcluster.protocol.codec import Decoder, Message, encode
from tfcluster.protocol.serialization import DecodeError, decode, to_json


@dataclass(frozen=True)
class Reserve:
    """The order to reserve a port for each member on the host."""


@dataclass(frozen=True)
class Start:
    """The order to start the members on the host."""

    attempt: int  # how often the group was started before
    addresses: dict[str, list[str]]  # of all members of the group, by job


@dataclass(frozen=True)
class StartTrial:
    """The order to start a trial of a sweep."""

    trial: int  # its number; reports have it as their `rank`
    place: int  # the rank of the group's member that says where it runs
    attempt: int  # how often it was started before


@dataclass(frozen=True)
class Stop:
    """The order to end all members."""

    seconds: float  # between SIGTERM and SIGKILL


@dataclass(frozen=True)
class StopIdle:
    """The order to end, from now on, the workers that do not compute: they served a member that has exited."""

    seconds: float  # how long a worker must not have computed


@dataclass(frozen=True)
class SignalOrder:
    """The order to pass on to all members a signal that the command of the group has received."""

    number: int


@dataclass(frozen=True)
class End:
    """The order to exit: the group has ended."""

    exit_code: int


@dataclass(frozen=True)
class Ports:
    """The report of the ports that are reserved."""

    ports: list[int]  # of the members on the host, in the order of their ranks


@dataclass(frozen=True)
class Started:
    """The report that a member was started."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Output:
    """The report of a member's output."""

    rank: int
    stream: str  # `stdout` or `stderr`
    data: str  # bytes that are not UTF-8 are escaped (`surrogateescape`)


@dataclass(frozen=True)
class Measured:
    """The report of a member's `tfcluster.metric`."""

    rank: int
    event: dict[str, Any]  # the event of the run that has it


@dataclass(frozen=True)
class Observed:
    """The report that the agent's observation of a member has changed."""

    rank: int
    observation: MemberObservation


@dataclass(frozen=True)
class Exited:
    """The report that a member has exited."""

    rank: int
    exit_code: int  # negative if a signal has ended the member
    failure: str  # the exception that ended it, in one line, or what to append to the signal; can be empty
    was_idle: bool  # the host has ended it because it did not compute (`StopIdle`)
    hint: str = ""  # what to do about the failure


@dataclass(frozen=True)
class Unable:
    """The report that the host cannot carry out an order."""

    problem: str


Order = Reserve | Start | StartTrial | Stop | StopIdle | SignalOrder | End
Report = Ports | Started | Output | Measured | Observed | Exited | Unable
_KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in (*get_args(Order), *get_args(Report))}


def to_message(value: Order | Report) -> Message:
    """Return the message that has an order or a report."""
    return {"kind": type(value).__name__.lower(), "value": to_json(value)}


def from_message(message: Message) -> Any:
    """Return the order or the report in a message, or raise a ClusterError if it has neither."""
    kind = _KINDS.get(str(message.get("kind")))
    if kind is None:
        raise ClusterError(f"an unknown message arrived: {message.get('kind')!r:.80}")
    try:
        return decode(kind, message.get("value"))
    except DecodeError as error:
        raise ClusterError(f"a wrong message {message['kind']!r} arrived: {error.without_value}") from None


class GroupLink:
    """A connection that carries orders and reports.

    `host` is the name of the host at the other end, or of this one.
    """

    def __init__(self, connection: socket.socket, host: str) -> None:
        self.host = host
        self._connection = connection
        self._decoder = Decoder()

    def fileno(self) -> int:
        """Return the socket's descriptor, which is readable when something has arrived."""
        return self._connection.fileno()

    def send(self, value: Order | Report) -> None:
        """Send an order or a report; wait until the other side has taken what was sent before."""
        self._connection.sendall(encode(to_message(value)))

    def receive(self) -> list[Any] | None:
        """Return the orders or reports that have arrived; None if the connection is lost.

        Raises ClusterError: the other side has sent something else.
        """
        try:
            data = self._connection.recv(settings.IO_BLOCK_BYTES)
        except OSError:
            return None
        return [from_message(message) for message in self._decoder.feed(data)] if data else None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def detach(self) -> None:
        """Give up the descriptor in a forked process, which has closed it."""
        self._connection.detach()


class Admission:
    """A connection that has reached the coordinator and has not proved yet that it belongs to the group.

    `hosts` are the hosts that are not connected yet, at any time. `began` is when the connection was made, in seconds
    of `time.monotonic()`.
    """

    def __init__(self, connection: socket.socket, secret: str, hosts: Collection[str]) -> None:
        self._connection = connection
        self._secret = secret
        self._hosts = hosts
        self._received = b""
        self.began = time.monotonic()
        self._nonce = secrets.token_hex(16)
        connection.setblocking(False)
        connection.send(encode({"nonce": self._nonce}))

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._connection.fileno()

    def read(self) -> GroupLink | None:
        """Read the host's proof; return the link when it is complete and right, and None until then.

        Raises ClusterError: the proof is wrong, or there will be none.
        """
        try:
            data = self._connection.recv(settings.GROUP_PROOF_MAX_BYTES - len(self._received))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._received += data
        if not data or (len(self._received) >= settings.GROUP_PROOF_MAX_BYTES and b"\n" not in self._received):
            raise ClusterError("the connection has no proof")
        if not self._received.endswith(b"\n"):
            return None
        answer = _decode(self._received)
        host, nonce = answer.get("host", ""), answer.get("nonce", "")
        if host not in self._hosts or not _is_proof(answer, self._secret, "host", host, self._nonce, nonce):
            raise ClusterError("the proof is wrong")
        detect_loss(self._connection)
        self._connection.setblocking(True)
        self._connection.sendall(encode({"proof": _proof(self._secret, "coordinator", host, nonce, self._nonce)}))
        return GroupLink(self._connection, host)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class GroupListener:
    """Listens for the other hosts of a group, and accepts those that prove that they belong to it.

    Args:
        hosts: The names of the hosts; each is accepted once.
        cluster: The addresses that may connect, or None if all may.
        poll: Watches the descriptors of this object, whose events are passed to `handle`.
    """

    def __init__(
        self,
        secret: str,
        hosts: Collection[str],
        cluster: Collection[Address] | None,
        poll: select.poll,
        ports: Sequence[int] = (),
    ) -> None:
        self._secret = secret
        self._hosts = set(hosts)
        self._poll = poll
        self._admissions: dict[int, Admission] = {}
        self._listener = bind_free_port(ports)
        if cluster is not None:
            restrict(self._listener, cluster)
        self._listener.listen(settings.PORT_BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        poll.register(self._listener, select.POLLIN)

    def handle(self, fd: int) -> GroupLink | None:
        """Handle the event of a descriptor; return the connection to a host that is accepted now."""
        if fd == self._listener.fileno():
            self._accept()
        elif fd in self._admissions:
            return self._read_proof(fd)
        return None

    def close(self) -> None:
        """Stop listening, and close the connections that were not accepted."""
        for fd in list(self._admissions):
            self._refuse(fd)
        self._poll.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the other side has given up, or no descriptor is left
            connection, _ = self._listener.accept()
            limit = time.monotonic() - settings.GROUP_PROOF_SECONDS
            for fd in [fd for fd, admission in self._admissions.items() if admission.began <= limit]:
                self._refuse(fd)
            if len(self._admissions) >= settings.GROUP_ADMISSIONS_MAX:
                connection.close()  # a host of the group connects again
                return
            admission = Admission(connection, self._secret, self._hosts)
            self._admissions[admission.fileno()] = admission
            self._poll.register(admission, select.POLLIN)

    def _read_proof(self, fd: int) -> GroupLink | None:
        try:
            link = self._admissions[fd].read()
        except (ClusterError, OSError):
            self._refuse(fd)
            return None
        if link is not None:
            del self._admissions[fd]
            self._poll.unregister(fd)
            self._hosts.discard(link.host)
        return link

    def _refuse(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._admissions.pop(fd).close()


def connect(address: str, secret: str, host: str) -> GroupLink:
    """Connect a host to the coordinator of its group; try again if the connection is refused or closed.

    Raises OSError: the coordinator cannot be reached. Raises ClusterError: what listens there is not the coordinator.
    """
    deadline = time.monotonic() + settings.LINK_CONNECT_SECONDS
    while True:
        try:
            return _connect(address, secret, host)
        except OSError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(settings.GROUP_RECONNECT_SECONDS)


def _connect(address: str, secret: str, host: str) -> GroupLink:
    name, _, port = address.rpartition(":")
    connection = socket.create_connection((name.strip("[]"), int(port)), timeout=settings.LINK_CONNECT_SECONDS)
    try:
        nonce = _receive_line(connection).get("nonce", "")
        own = secrets.token_hex(16)
        proof = _proof(secret, "host", host, str(nonce), own)
        connection.sendall(encode({"host": host, "nonce": own, "proof": proof}))
        if not _is_proof(_receive_line(connection), secret, "coordinator", host, own, str(nonce)):
            raise ClusterError(f"what listens at {address} is not the coordinator of the group")
        detect_loss(connection)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return GroupLink(connection, host)


def _receive_line(connection: socket.socket) -> Message:
    """Receive one line, byte by byte, so that none of what follows is taken."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the coordinator has closed the connection")
        if len(line) >= settings.GROUP_PROOF_MAX_BYTES:
            raise ClusterError("what listens there is not the coordinator of the group")
        line += byte
    return _decode(line)


def _decode(line: bytes) -> Message:
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict) and all(isinstance(value, str) for value in message.values()):
            return message
    raise ClusterError("malformed handshake message")


def _proof(secret: str, *parts: str) -> str:
    return hmac.new(bytes.fromhex(secret), _encode_text("\n".join(parts)), "sha256").hexdigest()


def _is_proof(answer: Message, secret: str, *parts: str) -> bool:
    return hmac.compare_digest(_encode_text(str(answer.get("proof", ""))), _proof(secret, *parts).encode())


def _encode_text(text: str) -> bytes:
    """Encode text of the other side, which may have surrogates: JSON allows what UTF-8 does not."""
    return text.encode(errors="surrogatepass")
