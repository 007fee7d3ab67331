"""What a ready, idle cluster of 16 tasks costs, and how much more while `top` shows it: processor time of its agent.

The agent's helpers count too, the servers and the command itself do not. It is compared with what a bare `import
tensorflow` costs on the same machine, because a share of a core says nothing without the speed of the core.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time

import pexpect
import psutil
from clusters import Cluster, cluster_folder, wait_until_warm
from side_by_side import report

SERVERS = 16
SECONDS = 60.0
TARGET = 4  # times less in a minute than one import


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
    """Return the seconds of processor time that processes use in a minute."""
    before = cpu_seconds(processes)
    time.sleep(SECONDS)
    return cpu_seconds(processes) - before


def import_tensorflow() -> float:
    """Return the seconds of processor time that a bare import takes."""

    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = children()
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, stderr=subprocess.DEVNULL)
    return children() - before


def watch(cluster: Cluster, idle: float) -> float:
    """Return the seconds of processor time that `top` adds to the agent's in a minute."""
    environment = {**cluster.environment, "TERM": "xterm-256color"}
    # It writes to a terminal that is read: what is drawn stays in the buffer of the pseudo-terminal otherwise.
    with pexpect.spawn(cluster.command[0], [*cluster.command[1:], "top"], env=environment, dimensions=(24, 80)) as top:
        top.expect("Quit", timeout=60)
        reader = threading.Thread(target=lambda: top.expect(pexpect.EOF, timeout=None), daemon=True)
        reader.start()
        more = measure(helpers(cluster)) - idle
        top.kill(signal.SIGTERM)
        reader.join()
    return more


def compare_with_import(title: str, seconds: float, imports: list[float]) -> bool:
    """Print the processor time of a minute beside that of each import; return whether the target is reached."""
    print(f"{100 * seconds / SECONDS:.2f} % of one core in {SECONDS:g} s:")
    pairs = [(max(seconds, 0.01), each) for each in imports]  # the kernel counts in hundredths of a second
    return report(f"{title}, against `import tensorflow`, processor time", "s", pairs, TARGET)


def main() -> bool:
    """Measure and print; return whether the targets are reached."""
    imports = [import_tensorflow()]
    with cluster_folder() as cluster:
        spec = cluster.folder / "idle.yaml"
        spec.write_text(f"jobs:\n  worker: {{tasks: {SERVERS}}}\n")
        cluster("up", str(spec))
        wait_until_warm(cluster)
        processes = helpers(cluster)
        idle = measure(processes)
        imports.append(import_tensorflow())
        names = ", ".join(process.cmdline()[0].split()[-1] for process in processes[1:])
        more = watch(cluster, idle)
    imports.append(import_tensorflow())
    is_idle = compare_with_import(f"agent, {names} over {SERVERS} ready, idle tasks", idle, imports)
    return compare_with_import("what `top` adds while it shows the cluster", more, imports) and is_idle


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
