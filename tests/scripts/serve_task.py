"""The server of the first task of a topology: `serve_task.py TOPOLOGY LOG DESCRIPTOR`."""

import json
import socket
import sys
from pathlib import Path

from tfcluster.core.topology import ClusterTopology
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.processes.servers.tf_server import serve
from tfcluster.protocol.serialization import decode
from tfcluster.tf_install import find_tensorflow_library

topology = decode(ClusterTopology, json.loads(sys.argv[1]))
agent = socket.socket(fileno=int(sys.argv[3]))
log = Path(sys.argv[2])
serve(TensorFlow(find_tensorflow_library()), topology, topology.tasks[0], log, agent, [log.parent])
