"""Listens as TensorFlow does: `PORT FAMILIES ATTACHING ADDRESS...`, on a port that only some addresses may reach.

Prints `listens`, or the reason why it may not. Without addresses the port is not restricted.
"""

import socket
import sys
from ipaddress import ip_address
from typing import Any

from tfcluster.os import bpf
from tfcluster.processes.servers import port_isolation


def refuse(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


port, families, attaching, *cluster = sys.argv[1:]
if attaching == "refused":
    bpf.attach_filter = refuse  # type: ignore[assignment]
reasons: list[str] = []
if cluster:
    addresses = frozenset(map(ip_address, cluster))
    port_isolation.isolate_this_process(addresses, lambda error: reasons.append(error.message))
try:
    place = ("", int(port))
    if families == "both in one":
        listeners = [socket.create_server(place, family=socket.AF_INET6, dualstack_ipv6=True)]
    else:
        listeners = [socket.create_server(place, family=each) for each in (socket.AF_INET, socket.AF_INET6)]
    for listener in listeners:
        listener.listen()  # once more: a filter stays
    print("listens", flush=True)
except PermissionError:
    print(*reasons, flush=True)
sys.stdin.readline()
