"""Listens on a port in each way that a program may, prints `PORTS {kind: port}`, and ends when there is a file `go`.

With the argument `plain` it does so without TensorFlow.
"""

import json
import multiprocessing
import multiprocessing.connection
import os
import re
import socket
import subprocess
import sys
import time


def listen(connection: "multiprocessing.connection.Connection[int, int] | None" = None) -> socket.socket:
    server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    if connection is not None:
        connection.send(server.getsockname()[1])
        time.sleep(600)
    return server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


ports: dict[str, int] = {}
if sys.argv[1:] != ["plain"]:
    import tensorflow as tf

    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    ports["chief"] = int(cluster["chief"][0].rpartition(":")[2])
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    server = tf.distribute.Server({"local": ["localhost:0"]})
    ports["server"] = int(server.target.rpartition(":")[2])
    ports["profiler"] = free_port()
    tf.profiler.experimental.server.start(ports["profiler"])  # holds the interpreter's lock while it listens
listener = listen()
ports["socket"] = listener.getsockname()[1]
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=listen, args=(theirs,), daemon=True)
child.start()
ports["fork"] = ours.recv()
http = subprocess.Popen(
    [sys.executable, "-u", "-m", "http.server", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
)
assert http.stdout is not None
ports["exec"] = int(re.findall(r"port (\d+)", http.stdout.readline())[0])
print("PORTS", json.dumps(ports), flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
http.kill()
http.wait()
