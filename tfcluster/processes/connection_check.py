"""The check between hosts: one side connects to the ports of the others, which the other side answers.

The side that answers sends a line with the address from which the connection comes, empty if the cluster's ports admit
that address. Then it sends back what it receives: enough to fill packets of every size. Packets that are too large for
the way between two hosts are lost, and no error says so, if a firewall drops the ICMP message about them.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

from tfcluster import settings
from tfcluster.os.network import Address, parse_address
from tfcluster.protocol.api.cluster import LARGE_PACKETS_LOST, ReachReply, ReachRequest

_ECHOED = bytes(1 << 16)


def check_connections(request: ReachRequest) -> ReachReply:
    """Connect to all addresses by TCP in parallel; see `ReachRequest`.

    If a name is still being resolved at the end, its thread is left behind. Only a process that ends by `os._exit` may
    therefore call this.
    """
    pool = ThreadPoolExecutor(max(1, len(request.addresses)))
    checks = {pool.submit(_check, each, request.timeout, each in request.answered): each for each in request.addresses}
    done, _ = wait(checks, request.limit)
    failures, sources = {}, {}
    for check, address in checks.items():
        failure, source = check.result() if check in done else (describe_timeout(request.timeout), "")
        if failure:
            failures[address] = failure
        elif source:
            sources[address] = source
    return ReachReply(failures, sources)


def _check(address: str, timeout: float, is_answered: bool) -> tuple[str, str]:
    """Connect to an address, with a timeout in seconds; return why that fails, and the address that was named."""
    host, _, port = address.rpartition(":")
    seconds = timeout
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds) as connection:
            if not is_answered:
                return "", ""
            seconds = settings.CONNECTIVITY_ANSWER_SECONDS
            connection.settimeout(seconds)
            with connection.makefile("rb") as answer:
                if not (line := answer.readline()):
                    return "the connection was closed at once", ""
                try:
                    connection.sendall(_ECHOED)
                    is_echoed = bool(answer.read(1))  # the host closes the connection if it has waited too long
                except TimeoutError:
                    is_echoed = False
                if not is_echoed:
                    return LARGE_PACKETS_LOST, ""
                return "", line.decode().strip()
    except TimeoutError:
        return describe_timeout(seconds), ""
    except OSError as error:
        return str(error.strerror or error), ""


def describe_timeout(seconds: float) -> str:
    """Return the reason of a connection that is not answered within some seconds."""
    return f"no answer within {seconds:g} s"


def answer_connections(listeners: Iterable[socket.socket], is_admitted: Callable[[Address], bool]) -> None:
    """Answer what `check_connections` sends on other hosts, until no socket listens any more. This starts threads."""
    # Everyone can connect, and gets nothing but this: a stranger can occupy threads.
    pool = ThreadPoolExecutor(settings.CONNECTIVITY_ANSWERS_MAX)
    with selectors.DefaultSelector() as selector:
        for each in listeners:
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket), "only sockets are registered"
                try:
                    connection, _ = key.fileobj.accept()
                except OSError as error:
                    if error.errno == errno.EINVAL:  # it does not listen any more
                        selector.unregister(key.fileobj)
                    else:  # the connection is closed already, or no descriptor is left for now
                        time.sleep(settings.CONNECTIVITY_ACCEPT_RETRY_SECONDS)
                else:
                    pool.submit(_answer, connection, is_admitted)


def _answer(connection: socket.socket, is_admitted: Callable[[Address], bool]) -> None:
    with connection, suppress(OSError):
        connection.settimeout(settings.CONNECTIVITY_ANSWER_SECONDS)
        address = parse_address(connection.getpeername()[0])
        connection.sendall(b"\n" if is_admitted(address) else f"{address}\n".encode())
        with connection.makefile("rb") as received:
            if data := received.read(len(_ECHOED)):
                connection.sendall(data)
