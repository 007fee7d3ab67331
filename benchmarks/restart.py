"""A killed server until it answers again, against starting a Python server process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

from cluster_start import free_ports, wait_for_answer
from clusters import cluster_folder, wait_until_warm
from side_by_side import compare

_SERVER = """
import sys
import tensorflow as tf
spec = tf.train.ClusterSpec({"worker": [sys.argv[1]]})
tf.distribute.Server(spec, job_name="worker", task_index=0).join()
"""


def wait_for_listener(address: str, *, away: bool = False) -> None:
    """Wait until a server listens at an address, or no longer does, without gRPC's pauses between attempts."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port))).close()
            listens = True
        except OSError:
            listens = False
        if listens is not away:
            return
        time.sleep(0.001)


def python_server() -> float:
    """Return the seconds from the start of a process that imports TensorFlow until it answers."""
    [port] = free_ports(1)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", _SERVER, f"localhost:{port}"], stderr=subprocess.DEVNULL)
    try:
        wait_for_listener(f"localhost:{port}")
        wait_for_answer(f"localhost:{port}")
        return time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def main() -> bool:
    """Measure and print; return whether the target is reached."""
    with cluster_folder() as cluster:
        spec = cluster.folder / "restart.yaml"
        # Practically no limit: the benchmark kills the same server repeatedly.
        spec.write_text(
            "jobs:\n  ps: {tasks: 1}\n  worker: {tasks: 2}\n"
            "restart: {backoff: {initial: 0.001, max: 0.001}, limit: 1000 in 1}\n"
        )
        cluster("up", str(spec))
        wait_until_warm(cluster)

        def killed_server() -> float:
            worker = next(task for task in cluster.status()["tasks"] if task["job"] == "worker")
            pidfd = os.pidfd_open(worker["pid"])
            began = time.perf_counter()
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            wait_for_listener(worker["address"], away=True)
            wait_for_listener(worker["address"])
            wait_for_answer(worker["address"])
            return time.perf_counter() - began

        return compare(
            "a killed server until it answers again, against starting a Python server process",
            "s",
            killed_server,
            python_server,
            rounds=7,
            target=15,
        )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
