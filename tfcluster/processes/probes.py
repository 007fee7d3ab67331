"""The processes that ask servers for their health and traces (gRPC), for the agent.

They are separate processes because this takes threads, and the agent must stay single-threaded to be able to fork.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.protocol.codec import Decoder, Message, encode

_STATUS = "/tensorflow.WorkerService/GetStatus"
_CLEANUP = "/tensorflow.WorkerService/CleanupAll"
_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel has a new connection
    ("grpc.http2.bdp_probe", 0),  # a ping for each call, which takes a sixth of a probe's processor time
]


def probe(agent: socket.socket) -> None:
    """Run the health prober: handle the agent's requests to servers until the agent closes the connection.

    A request is a line `{"id", "address", "timeout", "clear"}`, and its reply `{"id", "devices", "incarnation"}` or
    `{"id", "error"}`. If `clear` names a container, the server is not asked for its status but clears the container;
    the list of devices in the reply is then empty.
    """
    grpc = _import_grpc()
    # Blocking calls in a few threads take 20 % less processor time than futures, for which gRPC starts threads.
    # A server that hangs occupies a thread until the timeout.
    executor = ThreadPoolExecutor(settings.PROBE_THREADS_MAX)
    replies = Replies(agent)
    channels = _Channels(lambda address: grpc.insecure_channel(address, options=_CHANNEL_OPTIONS))
    decoder = Decoder()
    while data := agent.recv(1 << 16):
        channels.close_unused()
        requests = decoder.feed(data)
        replies.await_more(len(requests))
        for request in requests:
            executor.submit(_respond, replies, channels, channels.get(request["address"]), request)


def _import_grpc() -> Any:
    """Import gRPC, which starts threads: no process that forks may do so.

    The system's resolver looks up a server's name when a channel connects, as for TensorFlow's servers. The one that
    gRPC brings does not know names that come from a module of the C library, such as those of mDNS.
    """
    os.environ["GRPC_DNS_RESOLVER"] = "native"
    import grpc

    return grpc


class Replies:
    """Sends replies to the agent. Those that come together are one message, as each message wakes it. Thread-safe."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._waiting = b""
        self._awaited = 0

    def await_more(self, count: int) -> None:
        """Expect the replies to a number of requests."""
        with self._lock:
            self._awaited += count

    def add(self, message: Message) -> None:
        """Add a reply. The last one that is awaited sends all; and the first one does so in a moment."""
        with self._lock:
            is_first = not self._waiting
            self._waiting += encode(message)
            self._awaited -= 1
            if self._awaited == 0:
                self._send()
                return
        if is_first:
            time.sleep(settings.PROBE_REPLY_SECONDS)
            with self._lock:
                self._send()

    def _send(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, b""
            self._agent.sendall(waiting)


class _Channels:
    """The channels to servers, by address; `connect` opens one. Thread-safe."""

    def __init__(self, connect: Callable[[str], Any]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._channels: dict[str, tuple[Any, float]] = {}  # each with when it was used last, in monotonic seconds

    def get(self, address: str) -> Any:
        """Return the channel to the server at an address."""
        with self._lock:
            channel, _ = self._channels.get(address) or (self._connect(address), 0.0)
            self._channels[address] = channel, time.monotonic()
            return channel

    def discard(self, channel: Any) -> None:
        """Forget a channel on which a call has failed, so that the next call connects.

        Its connection may be lost, and the kernel sends again only after as long as it was lost already.
        """
        with self._lock:
            self._channels = {address: each for address, each in self._channels.items() if each[0] is not channel}

    def close_unused(self) -> None:
        """Close the channels that have had no request for long, such as those of tasks that are gone."""
        limit = time.monotonic() - settings.PROBE_CHANNEL_SECONDS
        with self._lock:
            for address, (channel, used) in list(self._channels.items()):
                if used < limit:
                    del self._channels[address]
                    channel.close()


def _respond(replies: Replies, channels: _Channels, channel: Any, request: Message) -> None:
    """Handle one request over a channel to the server."""
    import grpc

    from tfcluster.processes import protos

    container = request["clear"]
    message: Message = {"id": request["id"]}
    method = _STATUS if container is None else _CLEANUP
    data = b"" if container is None else protos.cleanup_request(container)
    try:
        # Without serialisers: requests and responses are bytes.
        data = channel.unary_unary(method, None, None)(data, timeout=request["timeout"])
        message["devices"], message["incarnation"] = protos.parse_status(data)  # empty if a container was cleared
    except grpc.RpcError as error:
        late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        message["error"] = f"timed out after {request['timeout']:g} s" if late else _describe(error)
        if late or error.code() is grpc.StatusCode.UNAVAILABLE:
            channels.discard(channel)
    replies.add(message)


def _describe(error: Any) -> str:
    """Return why a call has failed: what the system said, with which gRPC's text ends, such as `Connection refused`."""
    text: str = error.details() or error.code().name
    return text.partition(" syscall:")[0].rpartition(": ")[2].partition(" (")[0].rstrip("]")


_PROFILE = "/tensorflow.ProfilerService/Profile"


def capture_traces(addresses: Mapping[str, str], folder: Path, seconds: float) -> Message:
    """Capture the traces of servers, all at the same time. This starts threads.

    A server writes its trace to a file itself, in the form that TensorBoard's profile plugin reads.
    `addresses` has the `host:port` of each server, by the short name of its task. `trace_file` says where in `folder`
    the servers write. Return {"idle", "failures"}, as in ProfileReply.
    """
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        calls = {
            name: pool.submit(_capture_trace, address, folder, name, seconds) for name, address in addresses.items()
        }
        outcomes = {name: call.result() for name, call in calls.items()}
    return {
        "idle": [name for name, outcome in outcomes.items() if outcome is True],
        "failures": {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, str)},
    }


def trace_file(folder: Path, name: str) -> Path:
    """Return the file to which the server of a task writes its trace.

    `folder` is the folder of all traces, and `name` the short name of the task.
    """
    return folder / _session_of(name) / f"{_session_of(name)}.xplane.pb"


def _session_of(name: str) -> str:
    return name.replace(":", "_")


def _capture_trace(address: str, folder: Path, name: str, seconds: float) -> bool | str:
    """Capture one trace; return whether it is empty, or the reason why there is none."""
    from tfcluster.processes import protos

    grpc = _import_grpc()
    session = _session_of(name)
    request = protos.profile_request(str(folder), session, session, seconds)
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            response = channel.unary_unary(_PROFILE, None, None)(
                request, timeout=seconds + settings.PROFILE_COLLECT_SECONDS
            )
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return protos.is_trace_empty(response)
