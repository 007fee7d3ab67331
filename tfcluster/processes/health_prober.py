"""The health prober: the process that sends health checks to the servers by gRPC.

It is a separate process because gRPC starts threads, and the agent must stay single-threaded to be able to fork.
It reads requests `{"id", "address", "timeout", "clear"}`, one per line, and answers each with
`{"id", "devices", "incarnation"}` or `{"id", "error"}`. If `clear` names a container, the server is not asked for its
status but clears the container; the list of devices in the reply is then empty.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
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

    # Blocking calls in a few threads take 20 % less processor time than futures, for which gRPC starts threads.
    # A server that hangs occupies a thread until the timeout.
    executor = ThreadPoolExecutor(settings.PROBE_THREADS_MAX)
    write_lock = threading.Lock()
    calls: dict[tuple[str, str], Any] = {}
    decoder = Decoder()
    while data := agent.recv(1 << 16):
        for request in decoder.feed(data):
            address, container = request["address"], request["clear"]
            if (address, _STATUS) not in calls:
                channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
                for method in (_STATUS, _CLEANUP):  # without serialisers: requests and responses are bytes
                    calls[address, method] = channel.unary_unary(method, None, None)
            call = calls[address, _STATUS if container is None else _CLEANUP]
            executor.submit(_respond, agent, write_lock, call, request)


def _respond(agent: socket.socket, write_lock: threading.Lock, call: Any, request: Message) -> None:
    """Handle one request.

    Args:
        agent: The socket to the agent.
        write_lock: A lock that is held while a line is sent.
        call: The method of the server.
        request: The request.
    """
    import grpc

    container = request["clear"]
    message: Message = {"id": request["id"]}
    try:
        data = call(b"" if container is None else protos.cleanup_request(container), timeout=request["timeout"])
        message["devices"] = protos.devices_of(data)  # the response that clears a container is empty
        message["incarnation"] = protos.incarnation_of(data)
    except grpc.RpcError as error:
        message["error"] = f"{error.code().name}: {error.details()}"
    with write_lock:
        agent.sendall(encode(message))
