"""The process of one task: a TensorFlow server, its port closed before it serves."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tfcluster.model.layout import Layout, Task
from tfcluster.protocol.framing import encode
from tfcluster.runtime import child, protos
from tfcluster.runtime.addresses import addresses_of
from tfcluster.runtime.c_api import TensorFlow, TensorFlowError
from tfcluster.runtime.closed import NotClosedError, close_port
from tfcluster.runtime.environment import gpu_variables, without_proxy

OPEN_HINT = (
    "`network: open` in the spec starts servers that every machine in reach can run code on: "
    "say so where a firewall, or the network itself, keeps strangers from them."
)


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
    except (TensorFlowError, NotClosedError, OSError) as error:
        message = f"{error}. {OPEN_HINT}" if isinstance(error, NotClosedError) else str(error)
        os.write(2, f"tfcluster: {message}\n".encode())
        agent.sendall(encode({"error": message}))


def _start(tensorflow: TensorFlow, layout: Layout, task: Task, agent: socket.socket) -> None:
    definition = protos.server_def(layout.known_addresses(), task.job, task.index, task.cpus)
    # Looked up now, not while the port stands open.
    cluster = addresses_of(layout.hosts) if layout.network == "closed" else None
    server = tensorflow.new_server(definition)
    if cluster is not None:
        assert task.port is not None, "a task is started only when its port is chosen"
        close_port(task.port, cluster)
    server.start()
    agent.sendall(encode({"serving": True}))
    agent.close()
    server.join()


def _environment(layout: Layout, task: Task) -> dict[str, str]:
    hosts = [each.address_host for each in (*layout.tasks, *layout.reserved)]
    return {**without_proxy(os.environ, hosts), **gpu_variables(os.environ, task.gpu_ids), **task.env}
