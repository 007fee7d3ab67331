"""Capture traces from the profiler service of TensorFlow servers (gRPC), which each server has on its port.

A server writes its trace to a file itself, in the form that TensorBoard's profile plugin reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tfcluster import settings
from tfcluster.processes import protos
from tfcluster.protocol.codec import Message

_PROFILE = "/tensorflow.ProfilerService/Profile"


def capture_traces(addresses: Mapping[str, str], folder: Path, seconds: float) -> Message:
    """Capture the traces of servers, all at the same time. This starts threads.

    `addresses` has the `host:port` of each server, by the short name of its task. `trace_file` says where in `folder`
    the servers write. Return {"idle", "failures"}, as in ProfileReply.
    """
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        calls = {name: pool.submit(_capture, address, folder, name, seconds) for name, address in addresses.items()}
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


def _capture(address: str, folder: Path, name: str, seconds: float) -> bool | str:
    """Capture one trace; return whether it is empty, or the reason why there is none."""
    import grpc  # starts threads, so no process that forks imports it

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
