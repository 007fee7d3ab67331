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


def ours() -> tuple[float, float]:
    """Seconds until every task answers, and MiB of private memory a server."""
    with cluster_folder() as cluster:
        spec = cluster.folder / "sixteen.yaml"
        spec.write_text(f"jobs:\n  worker: {{tasks: {SERVERS}}}\n")
        seconds = cluster.seconds("up", str(spec))
        return seconds, private_mib([task["pid"] for task in cluster.status()["tasks"]])


def theirs() -> tuple[float, float]:
    """The same for processes that import TensorFlow."""
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
    """Return when the server at an address answers GetStatus."""
    with grpc.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 200)]) as channel:
        call = channel.unary_unary("/tensorflow.WorkerService/GetStatus", None, None)
        call(b"", wait_for_ready=True, timeout=300)


def private_mib(pids: list[int]) -> float:
    """Private memory of a process in MiB, the mean over `pids`."""
    return float(sum(psutil.Process(pid).memory_full_info().uss for pid in pids) / len(pids) / 2**20)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    holders = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [int(holder.getsockname()[1]) for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def main() -> bool:
    """Measure and print; whether every target is reached."""
    theirs()  # reads TensorFlow's files from the disk once, for both
    rounds = [(ours(), theirs()) for _ in range(ROUNDS)]
    is_fast = report(
        f"up of {SERVERS} workers from cold, until all answer",
        "s",
        [(mine[0], other[0]) for mine, other in rounds],
        target=15,
    )
    is_small = report("private memory of a server", "MiB", [(mine[1], other[1]) for mine, other in rounds], target=4)
    return is_fast and is_small


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
