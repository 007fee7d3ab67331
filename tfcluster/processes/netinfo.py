"""Resolve the IP addresses of a cluster's hosts."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, ip_address

from tfcluster.core.hosts import Host
from tfcluster.os.network import Address
from tfcluster.paths import LOCAL_HOST


def addresses_of(hosts: Iterable[Host]) -> frozenset[Address]:
    """Return the IPv4 and IPv6 addresses that hosts' addresses resolve to on this machine.

    Raises:
        OSError: The address of a host cannot be resolved. The message names the host.
    """
    addresses: set[Address] = set()
    for host in hosts:
        if host.address == LOCAL_HOST:  # a lookup would add milliseconds to the start of every server
            addresses.add(IPv4Address("127.0.0.1"))
            continue
        try:
            entries = socket.getaddrinfo(host.address, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid DNS name
            why = error.strerror if isinstance(error, OSError) else error
            raise OSError(
                f"host {host.name}: its address {host.address!r} cannot be resolved on this machine ({why})"
            ) from error
        for _, _, _, _, name in entries:
            address = ip_address(str(name[0]).partition("%")[0])  # "%eth0" follows a link-local address
            addresses.add((address.version == 6 and address.ipv4_mapped) or address)
    return frozenset(addresses)
