"""How long an agent keeps another command waiting while it reads many events, records and processes.

The cheapest request is sent again and again, and its longest answer is measured: during a command that asks the agent
for nothing, and during `logs` (3 MB of events), `logs RUN -n 10` (50 MB of output), `runs` (a hundred records) and
`stack` (500 processes, each with 200 descriptors). The difference is judged: on a busy machine, all answers are late.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from clusters import Cluster, cluster_folder, wait_until_warm
from side_by_side import verdict

from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.protocol.api.cluster import TopologyRequest
from tfcluster.transport.local import LocalTransport

TARGET_MS = 20
ROUNDS = 5
EVENT = b'2026-01-01T00:00:00.000Z %d {"time":1767225600.0,"event":"ready","task":"ps:0","detail":"%s"}\n'
SCRIPT = """
import os, pathlib, sys, time
print("line of the output\\n" * 2_500_000, flush=True)
for _ in range(200):
    os.set_inheritable(os.dup(0), True)
for _ in range(500):
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


def fill(cluster: Cluster) -> str:
    """Give a cluster that is up many events, records and processes; return the id of the run that has these."""
    (folder,) = Path(cluster.environment["XDG_STATE_HOME"]).glob("tfcluster/*/localhost")
    for _ in range(100):
        cluster("run", "pi", "--samples", "1", "--detach")
    script, ready = cluster.folder / "many.py", cluster.folder / "ready"
    script.write_text(SCRIPT)
    run = cluster("run", "--detach", str(script), str(ready)).strip()
    while not ready.exists():
        time.sleep(0.1)
    os.kill(cluster.status()["hosts"][0]["agent_pid"], signal.SIGKILL)  # the next one continues after what is added
    log = folder / "logs" / "events.log"
    log.rename(log.with_name("events.log.3"))
    position = log.with_name("events.log.3").stat().st_size
    for name in ("events.log.2", "events.log.1", "events.log"):
        lines = []
        for _ in range(7000):
            lines.append(EVENT % (position, b"x" * 40))
            position += len(lines[-1])
        log.with_name(name).write_bytes(b"".join(lines))
    return run


def longest_answer(client: AgentClient, cluster: Cluster, *command: str) -> float:
    """Return the longest answer to the cheapest request during a command, in milliseconds."""
    arguments = [*cluster.command, *(command or ("validate", "examples/cluster.yaml"))]
    longest, done = 0.0, threading.Event()

    def run() -> None:
        subprocess.run(arguments, env=cluster.environment, stdout=subprocess.DEVNULL, check=True)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not done.is_set():
        began = time.perf_counter()
        client.call(TopologyRequest())
        longest = max(longest, 1000 * (time.perf_counter() - began))
    thread.join()
    return longest


def main() -> bool:
    """Measure and print; return whether the target is reached."""
    with cluster_folder() as cluster:
        os.environ.update(cluster.environment)
        cluster("up", "examples/cluster.yaml")
        wait_until_warm(cluster)
        run = fill(cluster)
        client = AgentClient(LocalTransport(cluster.status()["cluster"]))
        is_reached, idle = True, 0.0
        for command in ((), ("logs", "-n", "0"), ("logs", run, "-n", "10"), ("runs",), ("stack", run)):
            figures = [longest_answer(client, cluster, *command) for _ in range(ROUNDS)]
            median = statistics.median(figures)
            idle = median if not command else idle
            is_reached = is_reached and median - idle <= TARGET_MS
            listed = "  ".join(f"{each:.1f}" for each in figures)
            name = " ".join(command) or "nothing"
            print(f"{name}: longest answer, median {median:.1f} ms   ({listed})", flush=True)
        print(f"  target at most {TARGET_MS} ms more than during nothing: {verdict(is_reached)}\n", flush=True)
        cluster("cancel", run)
        return is_reached


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
