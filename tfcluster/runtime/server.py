"""The process of one task: a TensorFlow server, whose port is restricted before it listens."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tfcluster.model.layout import Layout, Task
from tfcluster.protocol.framing import encode
from tfcluster.runtime import child, protos
from tfcluster.runtime.addresses import addresses_of
from tfcluster.runtime.c_api import Server, TensorFlow, TensorFlowError
from tfcluster.runtime.environment import gpu_variables, without_proxy
from tfcluster.runtime.port_isolation import OPEN_HINT, PortIsolationError, isolate_this_process


def serve(tensorflow: TensorFlow, layout: Layout, task: Task, log: Path, agent: socket.socket) -> None:
    """Be the server of a task; returns only when it could not be started.

    Args:
        tensorflow: The library, loaded by the agent.
        layout: The cluster.
        task: The task to serve.
        log: What it prints into.
        agent: The child's end of a socket pair. A line from the agent says that this process stands in the
            journal; end of file says that the agent died first, and then nobody would ever know of this
            process. Back goes one line: that it serves, or what went wrong.
    """
    if not agent.recv(1):
        return
    try:
        child.become(f"tfcluster: {layout.cluster} {task.short}", log=log, keep=[agent.fileno()])
        os.environ.update(_environment(layout, task))
        _start(tensorflow, layout, task, agent)
    except (TensorFlowError, PortIsolationError, OSError) as error:
        message = f"{error}. {OPEN_HINT}" if isinstance(error, PortIsolationError) else str(error)
        os.write(2, f"tfcluster: {message}\n".encode())
        agent.sendall(encode({"error": message}))


def _start(tensorflow: TensorFlow, layout: Layout, task: Task, agent: socket.socket) -> None:
    definition = protos.server_def(layout.known_addresses(), task.job, task.index, task.cpus)
    if layout.network == "closed":
        server = _new_isolated_server(tensorflow, definition, layout, task)
    else:
        server = tensorflow.new_server(definition)
    server.start()
    agent.sendall(encode({"serving": True}))
    agent.close()
    server.join()


def _new_isolated_server(tensorflow: TensorFlow, definition: bytes, layout: Layout, task: Task) -> Server:
    """Make the server in a process whose every port is restricted before it listens, for as long as it lives.

    Raises:
        PortIsolationError: Ports cannot be restricted here, or the server's has not been.
        TensorFlowError: The server could not be made.
    """
    reasons: list[str] = []
    guard = isolate_this_process(addresses_of(layout.hosts), reasons.append)
    try:
        server = tensorflow.new_server(definition)
    except TensorFlowError as error:
        raise (PortIsolationError(reasons[0]) if reasons else error) from error
    if task.port not in guard.ports:
        # gRPC goes on with one family where listening for the other fails; another way to listen would not be trapped.
        raise PortIsolationError(reasons[0] if reasons else f"port {task.port} was opened past its restriction")
    return server


def _environment(layout: Layout, task: Task) -> dict[str, str]:
    hosts = [each.address_host for each in (*layout.tasks, *layout.reserved)]
    return {**without_proxy(os.environ, hosts), **gpu_variables(os.environ, task.gpu_ids), **task.env}
