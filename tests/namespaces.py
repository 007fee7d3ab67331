"""Machines on a network of their own, played by network namespaces: what tests of several hosts dial between.

A switch connects them, or a router between their subnets.
"""

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
#: A slow cable: what waits in its queue arrives up to 60 ms later, and what does not fit is lost.
_SLOW = ("tbf", "rate", "8mbit", "burst", "16kb", "limit", "60kb")


@dataclass(frozen=True)
class Machine:
    """A machine on a network, with one address besides loopback's for each version of IP."""

    name: str
    namespace: str  # as `ip netns` calls it
    ipv4: str
    ipv6: str

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs another one on this machine. Only the network is its own: files are shared."""
        return [*_in(self.namespace), *arguments]

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
    """Machines that one switch or router connects."""

    switch: str  # the namespace that it is in
    machines: dict[str, Machine]

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def narrow(self, name: str, mtu: int) -> None:
        """Have the switch drop packets to and from a machine that are larger, without a word."""
        for machine in self.machines.values():
            machine.ip("link", "set", _INTERFACE, "gso_max_segs", "1")  # as on a cable: it carries no larger ones
        ip("-n", self.switch, "link", "set", name, "mtu", str(mtu))

    def limit_packets(self, name: str, mtu: int) -> None:
        """Have the router refuse larger packets to a machine, and say so to their senders, as before a tunnel."""
        subnet = f"{self[name].ipv4.rpartition('.')[0]}.0/24"
        ip("-n", self.switch, "route", "change", subnet, "dev", name, "mtu", "lock", str(mtu))

    def slow_down(self, name: str) -> None:
        """Give a machine a slow cable, which delays and loses packets both ways."""
        _run("tc", "-n", self.switch, "qdisc", "add", "dev", name, "root", *_SLOW)
        _run("tc", "-n", self[name].namespace, "qdisc", "add", "dev", _INTERFACE, "root", *_SLOW)

    def add_address(self, name: str, address: str) -> None:
        """Give a machine a second address, from which its connections come."""
        gateway = f"{self[name].ipv4.rpartition('.')[0]}.1"
        self[name].ip("address", "add", f"{address}/32", "dev", "lo")
        self[name].ip("route", "replace", "default", "via", gateway, "src", address)
        ip("-n", self.switch, "route", "add", f"{address}/32", "via", self[name].ipv4)

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
def network(*names: str, routed: bool = False) -> Iterator[Network]:
    """Machines, with names of up to 15 characters, on a network that is cut off from every other and is deleted.

    If it is routed, each machine has a subnet of its own.
    """
    requirements.check_declared("network")
    suite = f"tfc-{os.getpid()}-{uuid.uuid4().hex[:8]}"  # another suite may run on this machine
    with ExitStack() as stack:
        made = Network(_namespace(stack, f"{suite}-{_BRIDGE}"), {})
        if routed:
            _run(*_in(made.switch), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        else:
            ip("-n", made.switch, "link", "add", _BRIDGE, "type", "bridge")
            ip("-n", made.switch, "link", "set", _BRIDGE, "up")
        for number, name in enumerate(names, start=1):
            namespace = _namespace(stack, f"{suite}-{name}")
            made.machines[name] = (_add_behind_router if routed else _add_to_switch)(made, name, namespace, number)
        for machine in made.machines.values():
            wait_for(machine.is_connected)
        yield made


def _add_to_switch(made: Network, name: str, namespace: str, number: int) -> Machine:
    machine = Machine(name, namespace, f"10.77.0.{number}", f"fd77::{number:x}")
    _connect(made, machine, "master", _BRIDGE)
    return machine


def _add_behind_router(made: Network, name: str, namespace: str, number: int) -> Machine:
    machine = Machine(name, namespace, f"10.77.{number}.2", f"fd77:{number:x}::2")
    _connect(made, machine)
    ip("-n", made.switch, "address", "add", f"10.77.{number}.1/24", "dev", name)
    machine.ip("route", "add", "default", "via", f"10.77.{number}.1")
    return machine


def _connect(made: Network, machine: Machine, *port: str) -> None:
    """Lay a cable from a machine to a port of the switch or router, and give it its addresses."""
    ip(
        *("-n", made.switch, "link", "add", machine.name, *port, "up", "type", "veth"),
        *("peer", "name", _INTERFACE, "netns", machine.namespace),
    )
    machine.ip("address", "add", f"{machine.ipv4}/24", "dev", _INTERFACE)
    # A second of asking whether another has the address would go by before it can be used.
    machine.ip("address", "add", f"{machine.ipv6}/64", "dev", _INTERFACE, "nodad")
    machine.ip("link", "set", _INTERFACE, "up")


def _namespace(stack: ExitStack, name: str) -> str:
    """Add a namespace with its loopback up, which is deleted when the stack is left."""
    ip("netns", "add", name)
    stack.callback(ip, "netns", "delete", name)
    ip("-n", name, "link", "set", "lo", "up")
    return name


def _in(namespace: str) -> tuple[str, ...]:
    """The beginning of a command line that runs another one in a namespace."""
    return ("nsenter", f"--net=/run/netns/{namespace}", "--")


def ip(*arguments: str) -> str:
    """What the command `ip` prints."""
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{' '.join(command)}: {result.stderr}"
    return result.stdout
