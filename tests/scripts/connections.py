"""Answers a host's check of its connections, `answer MODE PORT ADDRESS...`, or checks, `check SECONDS PLACE...`.

What answers admits some addresses. It says nothing in the mode `silent`, and cannot accept at first in `busy`.
"""

import errno
import json
import os
import socket
import sys
from ipaddress import ip_address
from typing import Any

from tfcluster import settings
from tfcluster.processes.connection_check import answer_connections, check_connections
from tfcluster.protocol.api.cluster import ReachRequest


class BusyListener(socket.socket):
    """Cannot accept at first, as if the host had no descriptor left for a moment."""

    refusals = [errno.EMFILE, errno.ECONNABORTED]  # noqa: RUF012

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            raise OSError(self.refusals.pop(), "not now")
        return super().accept()


def answer(mode: str, port: str, *admitted: str) -> None:
    listener = socket.create_server(("", int(port)), family=socket.AF_INET6, dualstack_ipv6=True)
    print("listens", flush=True)
    if mode == "silent":
        sys.stdin.read()
    if mode == "busy":
        listener = BusyListener(fileno=listener.detach())
    answer_connections([listener], {*map(ip_address, admitted)}.__contains__)


def check(seconds: str, *places: str) -> None:
    settings.CONNECTIVITY_ANSWER_SECONDS = float(seconds)
    reply = check_connections(ReachRequest(places, 20.0, places))
    print(json.dumps([reply.failures, reply.sources]), flush=True)
    os._exit(0)


(answer if sys.argv[1] == "answer" else check)(*sys.argv[2:])
