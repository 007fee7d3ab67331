"""`up` of 16 local workers from cold, against 16 Python processes that each do tf.distribute.Server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import grpc
import psutil
from clusters import cluster_folder
from side_by_side import report

SERVERS = 16
ROUNDS = 3

_SERVER = """
import json, sys
import tensorflow as tf
spec = tf.train.ClusterSpec({"worker": json.loads(sys.argv[1])})
tf.distribute.Server(spec, job_name="worker", task_index=int(sys.argv[2])).join()
"""


def start_cluster() -> tuple[float, float]:
    """Return the seconds until every task of `tfcluster up` answers, and the MiB of private memory per server."""
    with cluster_folder() as cluster:
        spec = cluster.folder / "sixteen.yaml"
        spec.write_text(f"jobs:\n  worker: {{tasks: {SERVERS}}}\n")
        seconds = cluster.seconds("up", str(spec))
        return seconds, private_mib([task["pid"] for task in cluster.status()["tasks"]])


def start_python_servers() -> tuple[float, float]:
    """Return the same for processes that import TensorFlow."""
    addresses = [f"localhost:{port}" for port in free_ports(SERVERS)]
    began = time.perf_counter()
    processes = [
        subprocess.Popen([sys.executable, "-c", _SERVER, json.dumps(addresses), str(index)], stderr=subprocess.DEVNULL)
        for index in range(SERVERS)
    ]
    try:
        for address in addresses:
            wait_for_answer(address)
        return time.perf_counter() - began, private_mib([process.pid for process in processes])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for_answer(address: str) -> None:
    """Wait until the server at an address answers GetStatus.

    A channel that connected to a server that is about to die or to start fails with "Stream removed": each attempt has
    a channel of its own.

    Raises:
        grpc.RpcError: The server did not answer within 300 s.
    """
    deadline = time.monotonic() + 300
    while True:
        with grpc.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 200)]) as channel:
            try:
                call = channel.unary_unary("/tensorflow.WorkerService/GetStatus", None, None)
                call(b"", wait_for_ready=True, timeout=max(0.0, deadline - time.monotonic()))
                return
            except grpc.RpcError:
                if time.monotonic() >= deadline:
                    raise


def private_mib(pids: list[int]) -> float:
    """Return the mean private memory of some processes, in MiB."""
    return float(sum(psutil.Process(pid).memory_full_info().uss for pid in pids) / len(pids) / 2**20)


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> bool:
    """Measure and print; return whether every target is reached."""
    start_python_servers()  # reads TensorFlow's files from the disk once, for both
    rounds = [(start_cluster(), start_python_servers()) for _ in range(ROUNDS)]
    is_fast = report(
        f"up of {SERVERS} workers from cold, until all answer",
        "s",
        [(tfcluster[0], baseline[0]) for tfcluster, baseline in rounds],
        target=15,
    )
    is_small = report(
        "private memory of a server",
        "MiB",
        [(tfcluster[1], baseline[1]) for tfcluster, baseline in rounds],
        target=4,
    )
    return is_fast and is_small


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
