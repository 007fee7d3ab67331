"""What a ready, idle cluster of 16 tasks costs: processor time of the agent and all its helpers, of one core."""

from __future__ import annotations

import time

import psutil
from clusters import Cluster, cluster_folder, wait_until_warm

SERVERS = 16
SECONDS = 60.0
TARGET = 0.01


def helpers(cluster: Cluster) -> list[psutil.Process]:
    """The agent and everything that it forked but the servers."""
    status = cluster.status()
    servers = {task["pid"] for task in status["tasks"]}
    agent = psutil.Process(status["hosts"][0]["agent_pid"])
    return [agent, *(child for child in agent.children(recursive=True) if child.pid not in servers)]


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Processor time that the processes have used so far."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def main() -> None:
    """Measure and print."""
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
        verdict = "reached" if share < TARGET else "NOT REACHED"
        print(f"agent, {names} over {SERVERS} ready, idle tasks: {100 * share:.2f} % of one core in {SECONDS:g} s")
        print(f"  target below {100 * TARGET:g} %: {verdict}\n", flush=True)


if __name__ == "__main__":
    main()
