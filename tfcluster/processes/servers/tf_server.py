"""The process of a task: a TensorFlow server, whose port is restricted (isolated) before it listens."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from tfcluster.core.environment import server_variables
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.os import daemonize
from tfcluster.processes import protos
from tfcluster.processes.servers.c_api import TensorFlow, TensorFlowError
from tfcluster.processes.servers.port_isolation import PortIsolationError, addresses_of, isolate_this_process
from tfcluster.protocol.codec import encode


def serve(
    tensorflow: TensorFlow,
    topology: ClusterTopology,
    task: Task,
    log: Path,
    agent: socket.socket,
    folders: Sequence[Path],
) -> None:
    """Run the server of a task. This returns only if the server could not be started.

    `log` is the file for standard output and standard error. This process sends one line to the agent: that it serves,
    or the error. It runs in the first of the folders that can be entered; the last one is made.
    """
    try:
        daemonize.detach(f"tfcluster: {topology.cluster} {task.short}", log=log, keep=[agent.fileno()])
        os.environ.update(server_variables(topology, task, os.environ))
        definition = protos.server_def(topology.known_addresses(), task.job, task.index, task.cpus)
        if topology.closes_ports:
            server = _new_isolated_server(tensorflow, definition, topology, task)
        else:
            server = tensorflow.new_server(definition)
        _enter_first(folders)
        tensorflow.start(server)
        with contextlib.suppress(ConnectionError):  # the agent has died: the next one adopts this server
            agent.sendall(encode({"serving": True}))
        agent.close()
        tensorflow.join(server)
    except (TensorFlowError, PortIsolationError, OSError) as error:
        message = f"{error.message}. {error.hint}" if isinstance(error, PortIsolationError) else str(error)
        os.write(2, f"tfcluster: {message}\n".encode())
        agent.sendall(encode({"error": message}))


def _enter_first(folders: Sequence[Path]) -> None:
    """Enter the first folder that exists, from which no modules are imported; relative paths in graphs begin there."""
    sys.path[:] = filter(None, sys.path)
    for folder in folders:
        try:
            if folder is folders[-1]:
                folder.mkdir(exist_ok=True)
            os.chdir(folder)
        except OSError as error:
            os.write(2, f"tfcluster: this server does not run in {folder}: {error.strerror}\n".encode())
        else:
            return


def _new_isolated_server(tensorflow: TensorFlow, definition: bytes, topology: ClusterTopology, task: Task) -> int:
    """Create the server after isolating this process, so that every port that it ever opens is restricted.

    Raises PortIsolationError: ports cannot be restricted on this machine, or the server's port has not been restricted.
    """
    refusals: list[PortIsolationError] = []
    guard = isolate_this_process(addresses_of(topology.hosts), refusals.append)
    try:
        server = tensorflow.new_server(definition)
    except TensorFlowError as error:
        raise (refusals[0] if refusals else error) from error
    if task.port not in guard.ports:
        # If listening fails for one address family, gRPC continues with the other. A way to listen other than listen()
        # would not be trapped.
        raise (refusals or [PortIsolationError(f"port {task.port} was opened without being restricted")])[0]
    return server
