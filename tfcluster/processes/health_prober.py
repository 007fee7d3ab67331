"""The health prober: the process that sends health checks to the servers by gRPC.

It is a separate process because gRPC starts threads, and the agent must stay single-threaded to be able to fork.
It reads requests `{"id", "address", "timeout", "clear"}`, one per line, and answers each with
`{"id", "devices", "incarnation"}` or `{"id", "error"}`. If `clear` names a container, the server is not asked for its
status but clears the container; the list of devices in the reply is then empty.
"""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import Any

from tfcluster import settings
from tfcluster.processes import daemonize, protos
from tfcluster.protocol.codec import Decoder, Message, encode

_STATUS = "/tensorflow.WorkerService/GetStatus"
_CLEANUP = "/tensorflow.WorkerService/CleanupAll"
_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", settings.PROBE_RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", settings.PROBE_RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", settings.PROBE_RECONNECT_MAX_MS),
]


def probe(title: str, parent: int, agent: socket.socket) -> None:
    """Handle requests until the agent closes the connection.

    Args:
        title: The process title, which `ps` shows.
        parent: The agent's pid.
        agent: The child's end of a socket pair with the agent.
    """
    daemonize.detach(title, keep=[agent.fileno()], parent=parent)
    import grpc  # imported after the fork, as it starts threads

    answering = threading.Lock()
    calls: dict[tuple[str, str], Any] = {}
    decoder = Decoder()
    while data := agent.recv(1 << 16):
        for question in decoder.feed(data):
            address, container = question["address"], question["clear"]
            if (address, _STATUS) not in calls:
                channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
                for method in (_STATUS, _CLEANUP):  # without serialisers: requests and responses are bytes
                    calls[address, method] = channel.unary_unary(method, None, None)
            call = calls[address, _STATUS if container is None else _CLEANUP]
            request = b"" if container is None else protos.cleanup_request(container)
            future = call.future(request, timeout=question["timeout"])
            future.add_done_callback(partial(_answer, agent, answering, question["id"]))


def _answer(agent: socket.socket, answering: threading.Lock, identity: int, future: Any) -> None:
    """Send the result of one request to the agent. This runs on one of gRPC's threads.

    Args:
        agent: The socket to the agent.
        answering: A lock that is held while a line is sent.
        identity: The id of the request.
        future: The completed call. The response that clears a container is empty, so it contains no devices.
    """
    answer: Message = {"id": identity}
    if (error := future.exception()) is not None:
        answer["error"] = f"{error.code().name}: {error.details()}"
    else:
        answer["devices"] = protos.devices_of(future.result())
        answer["incarnation"] = protos.incarnation_of(future.result())
    with answering:
        agent.sendall(encode(answer))
