"""Runs a forwarder, `CONFIG DESCRIPTOR`: the descriptor is of the network namespace of its tasks."""

import os
import sys
from pathlib import Path

from tfcluster.os.process_handle import ProcessHandle
from tfcluster.private_network import PrivateNetwork
from tfcluster.processes.forwarder import forward

config, net = Path(sys.argv[1]), int(sys.argv[2])
user = os.open("/proc/self/ns/user", os.O_RDONLY)
network = PrivateNetwork(ProcessHandle(1, 1), os.fstat(user).st_ino, os.fstat(net).st_ino)
forward(config, config.with_suffix(".log"), network, (user, net))
