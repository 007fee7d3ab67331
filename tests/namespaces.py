"""Machines on a network of their own, played by network namespaces: what tests of several hosts dial between."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests import requirements
from tests.conftest import wait_for

_BRIDGE = "bridge"
_INTERFACE = "eth0"


@dataclass(frozen=True)
class Machine:
    """A machine on a network, with one address besides loopback's for each version of IP."""

    name: str
    namespace: str  # as `ip netns` calls it
    ipv4: str
    ipv6: str

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs another one on this machine. Only the network is its own: files are shared."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *arguments]

    def ip(self, *arguments: str) -> str:
        """What the command `ip` prints on this machine."""
        return ip("-n", self.namespace, *arguments)

    @contextmanager
    def dropping(self, port: int) -> Iterator[None]:
        """Drop what arrives for a port without an answer, as a firewall does."""
        with self._without(("iif", _INTERFACE, "ipproto", "tcp", "dport", str(port))):
            yield

    @contextmanager
    def losing(self, *addresses: str) -> Iterator[None]:
        """Lose all packets to and from addresses, as when the link to them is down."""
        with self._without(*((way, address) for address in addresses for way in ("to", "from"))):
            yield

    @contextmanager
    def _without(self, *selectors: tuple[str, ...]) -> Iterator[None]:
        """Route the packets that rules select nowhere."""
        rules = [("preference", "5", *selector, "blackhole") for selector in selectors]
        self.ip("rule", "add", "preference", "10", "lookup", "local")  # the first rule has none before
        self.ip("rule", "delete", "preference", "0")
        for rule in rules:
            self.ip("rule", "add", *rule)
        try:
            yield
        finally:
            for rule in rules:
                self.ip("rule", "delete", *rule)
            self.ip("rule", "add", "preference", "0", "lookup", "local")
            self.ip("rule", "delete", "preference", "10")

    def is_connected(self) -> bool:
        """Whether its cable carries; the kernel says so a moment after both ends are up."""
        return bool(json.loads(self.ip("-json", "link", "show", _INTERFACE))[0]["operstate"] == "UP")


@dataclass(frozen=True)
class Network:
    """Machines that one switch connects."""

    switch: str  # the namespace that it is in
    machines: dict[str, Machine]

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def narrow(self, name: str, mtu: int) -> None:
        """Have the switch drop packets to and from a machine that are larger, without a word."""
        for machine in self.machines.values():
            machine.ip("link", "set", _INTERFACE, "gso_max_segs", "1")  # as on a cable: it carries no larger ones
        ip("-n", self.switch, "link", "set", name, "mtu", str(mtu))

    def unplug(self, name: str) -> None:
        """Pull the cable of a machine: nothing reaches it, and it keeps its addresses."""
        ip("-n", self.switch, "link", "set", name, "down")

    def plug_in(self, name: str) -> None:
        """Put the cable of a machine back."""
        ip("-n", self.switch, "link", "set", name, "up")
        wait_for(self[name].is_connected)
        for machine in self.machines.values():  # a search for its address that began before would fail a second later
            machine.ip("neighbour", "flush", "dev", _INTERFACE)


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Machines, with names of up to 15 characters, on a network that is cut off from every other and is deleted."""
    requirements.check_declared("network")
    suite = f"tfc-{os.getpid()}-{uuid.uuid4().hex[:8]}"  # another suite may run on this machine
    with ExitStack() as stack:
        made = Network(_namespace(stack, f"{suite}-{_BRIDGE}"), {})
        ip("-n", made.switch, "link", "add", _BRIDGE, "type", "bridge")
        ip("-n", made.switch, "link", "set", _BRIDGE, "up")
        for number, name in enumerate(names, start=1):
            namespace = _namespace(stack, f"{suite}-{name}")
            machine = Machine(name, namespace, f"10.77.0.{number}", f"fd77::{number:x}")
            ip(
                *("-n", made.switch, "link", "add", name, "master", _BRIDGE, "up", "type", "veth"),
                *("peer", "name", _INTERFACE, "netns", namespace),
            )
            machine.ip("address", "add", f"{machine.ipv4}/24", "dev", _INTERFACE)
            # A second of asking whether another has the address would go by before it can be used.
            machine.ip("address", "add", f"{machine.ipv6}/64", "dev", _INTERFACE, "nodad")
            machine.ip("link", "set", _INTERFACE, "up")
            made.machines[name] = machine
        for machine in made.machines.values():
            wait_for(machine.is_connected)
        yield made


def _namespace(stack: ExitStack, name: str) -> str:
    """Add a namespace with its loopback up, which is deleted when the stack is left."""
    ip("netns", "add", name)
    stack.callback(ip, "netns", "delete", name)
    ip("-n", name, "link", "set", "lo", "up")
    return name


def ip(*arguments: str) -> str:
    """What the command `ip` prints."""
    result = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"ip {' '.join(arguments)}: {result.stderr}"
    return result.stdout
