"""The process that asks servers whether they answer; gRPC starts threads, and the agent must stay forkable.

It reads lines `{"id", "address", "timeout", "clear"}` and answers each with `{"id", "devices", "incarnation"}` or
`{"id", "error"}`.
Where `clear` names a container, the server is not asked for its status but clears the container, and names no devices.
"""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import Any

from tfcluster.processes import daemonize, protos
from tfcluster.protocol.codec import Decoder, Message, encode

_STATUS = "/tensorflow.WorkerService/GetStatus"
_CLEANUP = "/tensorflow.WorkerService/CleanupAll"
# Reconnect at once: whether to ask again, and when, is the agent's decision.
_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]


def probe(title: str, parent: int, agent: socket.socket) -> None:
    """Answer questions until the agent hangs up.

    Args:
        title: What `ps` shows.
        parent: The agent's pid.
        agent: The child's end of a socket pair.
    """
    daemonize.detach(title, keep=[agent.fileno()], parent=parent)
    import grpc  # after the fork: it starts threads

    answering = threading.Lock()
    calls: dict[tuple[str, str], Any] = {}
    decoder = Decoder()
    while data := agent.recv(1 << 16):
        for question in decoder.feed(data):
            address, container = question["address"], question["clear"]
            if (address, _STATUS) not in calls:
                channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
                for method in (_STATUS, _CLEANUP):  # no serialisers: bytes go and come as they are
                    calls[address, method] = channel.unary_unary(method, None, None)
            call = calls[address, _STATUS if container is None else _CLEANUP]
            request = b"" if container is None else protos.cleanup_request(container)
            future = call.future(request, timeout=question["timeout"])
            future.add_done_callback(partial(_answer, agent, answering, question["id"]))


def _answer(agent: socket.socket, answering: threading.Lock, identity: int, future: Any) -> None:
    """Send what came of one question; runs on one of gRPC's threads. A reply to a clearing is empty: no devices."""
    answer: Message = {"id": identity}
    if (error := future.exception()) is not None:
        answer["error"] = f"{error.code().name}: {error.details()}"
    else:
        answer["devices"] = protos.devices_of(future.result())
        answer["incarnation"] = protos.incarnation_of(future.result())
    with answering:
        agent.sendall(encode(answer))
