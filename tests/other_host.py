"""Another machine, on the far end of a cable: a network namespace and a veth pair."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

from tests import requirements

_DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 30).close()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


@dataclass
class OtherHost:
    """The machine.

    Attributes:
        name: Its network namespace.
        our_address: This machine's address on the cable.
    """

    name: str
    our_address: str

    def dial(self, port: int) -> str:
        """Return what a connection from there to a port here comes to: `connected`, or the name of the error."""
        result = subprocess.run(
            ["ip", "netns", "exec", self.name, sys.executable, "-c", _DIAL, self.our_address, str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return result.stdout.strip()


@contextmanager
def another_host() -> Iterator[OtherHost]:
    """A machine that is gone afterwards."""
    requirements.check_declared("network")
    mark = secrets.token_hex(4)
    name, here, there = f"tfc{mark}", f"h{mark}", f"t{mark}"
    # A /30 of the range for tests of networks (RFC 2544): suites that run at once hardly meet.
    network = IPv4Address("198.18.0.0") + 4 * secrets.randbelow(1 << 15)
    _ip("netns", "add", name)
    try:
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        try:
            _ip("address", "add", f"{network + 1}/30", "dev", here)
            _ip("link", "set", here, "up")
            _ip("-n", name, "address", "add", f"{network + 2}/30", "dev", there)
            _ip("-n", name, "link", "set", there, "up")
            yield OtherHost(name, str(network + 1))
        finally:
            _ip("link", "delete", here)  # with its namespace it would go at some later time, and its address too
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
