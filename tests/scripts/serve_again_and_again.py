"""Starts the server of a task again and again, and prints after how many starts the stranger's file was written."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from tfcluster.core.topology import ClusterTopology
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.processes.servers.tf_server import serve
from tfcluster.protocol.serialization import decode
from tfcluster.tf_install import find_tensorflow_library

topology = decode(ClusterTopology, json.loads(sys.argv[1]))
target, starts, patience, written = Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), 0
tensorflow = TensorFlow(find_tensorflow_library())
for _ in range(starts):
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        try:
            serve(tensorflow, topology, topology.tasks[0], target.with_name("log"), theirs, [target.parent])
        finally:
            os._exit(1)
    theirs.close()
    said = json.loads(ours.makefile().readline())
    assert said == {"serving": True}, said
    deadline = time.monotonic() + patience
    while not target.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ours.close()
    written += target.exists()
    target.unlink(missing_ok=True)
print(written)
