"""What a ready, idle cluster of 16 tasks costs: processor time of the agent and all its helpers, of one core."""

from __future__ import annotations

import sys
import time

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


def main() -> bool:
    """Measure and print; return whether the target is reached."""
    with cluster_folder() as cluster:
        spec = cluster.folder / "idle.yaml"
        spec.write_text(f"jobs:\n  worker: {{tasks: {SERVERS}}}\n")
        cluster("up", str(spec))
        wait_until_warm(cluster)
        processes = helpers(cluster)
        before = cpu_seconds(processes)
        time.sleep(SECONDS)
        share = (cpu_seconds(processes) - before) / SECONDS
        names = ", ".join(process.cmdline()[0].split()[-1] for process in processes[1:])
        is_reached = share < TARGET
        print(f"agent, {names} over {SERVERS} ready, idle tasks: {100 * share:.2f} % of one core in {SECONDS:g} s")
        print(f"  target below {100 * TARGET:g} %: {verdict(is_reached)}\n", flush=True)
        return is_reached


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
