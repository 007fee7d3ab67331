"""What a ready, idle cluster of 16 tasks costs, and how much more while `top` shows it: processor time of its agent.

The agent's helpers count too, the servers and the command itself do not."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pexpect
import psutil
from clusters import Cluster, cluster_folder, wait_until_warm
from side_by_side import verdict

SERVERS = 16
SECONDS = 60.0
TARGET = 0.01


def helpers(cluster: Cluster) -> list[psutil.Process]:
    """Return the agent and all processes that it forked except the servers."""
    status = cluster.status()
    servers = {task["pid"] for task in status["tasks"]}
    agent = psutil.Process(status["hosts"][0]["agent_pid"])
    return [agent, *(child for child in agent.children(recursive=True) if child.pid not in servers)]


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Processor time that the processes have used so far."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def measure(processes: list[psutil.Process]) -> float:
    """Return how much of a core processes use."""
    before = cpu_seconds(processes)
    time.sleep(SECONDS)
    return (cpu_seconds(processes) - before) / SECONDS


def watch(cluster: Cluster, idle: float) -> bool:
    """Measure what `top` adds to the agent's share of a core; return whether the target is reached."""
    environment = {**cluster.environment, "TERM": "xterm-256color"}
    # It writes to a terminal that is read: what is drawn stays in the buffer of the pseudo-terminal otherwise.
    with pexpect.spawn(cluster.command[0], [*cluster.command[1:], "top"], env=environment, dimensions=(24, 80)) as top:
        top.expect("Quit", timeout=60)
        reader = threading.Thread(target=lambda: top.expect(pexpect.EOF, timeout=None), daemon=True)
        reader.start()
        more = measure(helpers(cluster)) - idle
        top.kill(signal.SIGTERM)
        reader.join()
    is_reached = more < TARGET
    print(f"the same while `top` shows the cluster: {100 * more:.2f} % of one core more in {SECONDS:g} s")
    print(f"  target below {100 * TARGET:g} %: {verdict(is_reached)}\n", flush=True)
    return is_reached


def main() -> bool:
    """Measure and print; return whether the target is reached."""
    with cluster_folder() as cluster:
        spec = cluster.folder / "idle.yaml"
        spec.write_text(f"jobs:\n  worker: {{tasks: {SERVERS}}}\n")
        cluster("up", str(spec))
        wait_until_warm(cluster)
        processes = helpers(cluster)
        share = measure(processes)
        names = ", ".join(process.cmdline()[0].split()[-1] for process in processes[1:])
        is_reached = share < TARGET
        print(f"agent, {names} over {SERVERS} ready, idle tasks: {100 * share:.2f} % of one core in {SECONDS:g} s")
        print(f"  target below {100 * TARGET:g} %: {verdict(is_reached)}\n", flush=True)
        return watch(cluster, share) and is_reached


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
