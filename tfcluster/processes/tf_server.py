"""The process of one task: a TensorFlow server, whose port is restricted before it listens."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.processes import daemonize, protos
from tfcluster.processes.c_api import Server, TensorFlow, TensorFlowError
from tfcluster.processes.env import gpu_variables, no_proxy_env
from tfcluster.processes.netinfo import addresses_of
from tfcluster.processes.port_isolation import OPEN_HINT, PortIsolationError, isolate_this_process
from tfcluster.protocol.codec import encode


def serve(tensorflow: TensorFlow, topology: ClusterTopology, task: Task, log: Path, agent: socket.socket) -> None:
    """Be the server of a task; returns only when it could not be started.

    Args:
        tensorflow: The library, loaded by the agent.
        topology: The cluster.
        task: The task to serve.
        log: What it prints into.
        agent: The child's end of a socket pair. A line from the agent says that this process stands in the
            journal; end of file says that the agent died first, and then nobody would ever know of this
            process. Back goes one line: that it serves, or what went wrong.
    """
    if not agent.recv(1):
        return
    try:
        daemonize.detach(f"tfcluster: {topology.cluster} {task.short}", log=log, keep=[agent.fileno()])
        os.environ.update(_environment(topology, task))
        _start(tensorflow, topology, task, agent)
    except (TensorFlowError, PortIsolationError, OSError) as error:
        message = f"{error}. {OPEN_HINT}" if isinstance(error, PortIsolationError) else str(error)
        os.write(2, f"tfcluster: {message}\n".encode())
        agent.sendall(encode({"error": message}))


def _start(tensorflow: TensorFlow, topology: ClusterTopology, task: Task, agent: socket.socket) -> None:
    definition = protos.server_def(topology.known_addresses(), task.job, task.index, task.cpus)
    if topology.network == "closed":
        server = _new_isolated_server(tensorflow, definition, topology, task)
    else:
        server = tensorflow.new_server(definition)
    server.start()
    agent.sendall(encode({"serving": True}))
    agent.close()
    server.join()


def _new_isolated_server(tensorflow: TensorFlow, definition: bytes, topology: ClusterTopology, task: Task) -> Server:
    """Make the server in a process whose every port is restricted before it listens, for as long as it lives.

    Raises:
        PortIsolationError: Ports cannot be restricted here, or the server's has not been.
        TensorFlowError: The server could not be made.
    """
    reasons: list[str] = []
    guard = isolate_this_process(addresses_of(topology.hosts), reasons.append)
    try:
        server = tensorflow.new_server(definition)
    except TensorFlowError as error:
        raise (PortIsolationError(reasons[0]) if reasons else error) from error
    if task.port not in guard.ports:
        # gRPC goes on with one family where listening for the other fails; another way to listen would not be trapped.
        raise PortIsolationError(reasons[0] if reasons else f"port {task.port} was opened past its restriction")
    return server


def _environment(topology: ClusterTopology, task: Task) -> dict[str, str]:
    hosts = [each.address_host for each in (*topology.tasks, *topology.reserved)]
    return {**no_proxy_env(os.environ, hosts), **gpu_variables(os.environ, task.gpu_ids), **task.env}
