"""Commands on clusters of 1, 16 and 48 hosts with a task on each, and of 256 hosts, where 16 have tasks.

The hosts are reached by `connect:`, and are all this machine, with an address and a state folder for each, which takes
root. So what real hosts do at the same time is done here in turn, on this machine's cores, and the time of a command
includes the work of all hosts. Other numbers of hosts can be given: `many_hosts.py 1 16`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from clusters import Cluster, cluster_folder, wait_until_warm
from side_by_side import verdict

COUNTS = (1, 16, 48, 256)
MOST_TASKS = 16  # of clusters with more hosts than this machine has memory for servers
MOST_SERVERS = 64
ROUNDS = 5
COMMANDS = {
    "status": ("status",),
    "run pi": (
        "run",
        "pi",
        "--samples",
        "1e5",
        "--seed",
        "1",
        "--devices",
        "/job:worker/task:0",
        "--devices",
        "/job:worker/task:1",
    ),
    "logs": ("logs", "-n", "1"),
}
# For `status` on the most hosts, with two cores.
STATUS_SECONDS = 3.0
STATUS_BYTES = 60e6
# How many times as long `status` may take for each host on the most hosts as on 16.
GROWTH = 1.25
_ADDRESS = "10.99.{}.{}"


@dataclass
class Figures:
    """What a command took."""

    seconds: float
    cpu_seconds: float  # of the whole machine, as all hosts are on it
    bytes: int  # resident, of the command's process, at most


@contextlib.contextmanager
def addresses(count: int) -> Iterator[list[str]]:
    """Give this machine a number of addresses, which only it can reach."""
    texts = [_ADDRESS.format(number // 250, number % 250 + 1) for number in range(count)]
    try:
        for text in texts:
            subprocess.run(["ip", "address", "add", f"{text}/32", "dev", "lo"], check=True)
        yield texts
    finally:
        for text in texts:
            subprocess.run(["ip", "address", "del", f"{text}/32", "dev", "lo"], check=False, capture_output=True)


def measured(cluster: Cluster, *arguments: str) -> Figures:
    """Run a command and measure it."""
    busy, began = busy_seconds(), time.perf_counter()
    process = subprocess.Popen(
        [*cluster.command, *arguments],
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    assert process.returncode == 0, f"{arguments}: {process.returncode}: {errors.decode()[-2000:]}"
    return Figures(seconds, busy_seconds() - busy, usage.ru_maxrss * 1024)


def busy_seconds() -> float:
    """The processor time that this machine has spent on anything so far."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def measure(count: int) -> dict[str, list[Figures]]:
    """Start a cluster of `count` hosts, measure the commands on it, and take it down."""
    figures: dict[str, list[Figures]] = defaultdict(list)
    with addresses(count) as texts, cluster_folder() as cluster:
        cluster.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # hosts keep compiled code, also this one
        tasks = count if count <= MOST_SERVERS else MOST_TASKS
        hosts = "".join(
            f"  h{number}: {{address: {text}, connect: env, python: {sys.executable}, "
            f"state: {cluster.folder}/on/{{number}}}}\n".replace("{number}", str(number))
            for number, text in enumerate(texts)
        )
        spec = cluster.folder / "many.yaml"
        spec.write_text(f"name: many\nhosts:\n{hosts}jobs:\n  worker: {{tasks: {max(2, tasks)}}}\n")
        figures["up, first"].append(measured(cluster, "up", str(spec)))
        figures["up, again"].append(measured(cluster, "up", str(spec)))
        wait_until_warm(cluster)
        for _ in range(ROUNDS):
            for name, command in COMMANDS.items():
                figures[name].append(measured(cluster, *command))
        figures["down"].append(measured(cluster, "down"))
    return figures


def main(counts: tuple[int, ...] = COUNTS) -> bool:
    """Measure and print; return whether the targets are reached."""
    if os.getuid() or shutil.which("ip") is None:
        print("clusters on many hosts: left out, they take root and `ip`\n")
        return True
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    by_count = {count: measure(count) for count in counts}
    medians: dict[str, dict[int, float]] = defaultdict(dict)
    for name in by_count[counts[0]]:
        print(name)
        for count, figures in by_count.items():
            seconds = [each.seconds for each in figures[name]]
            medians[name][count] = statistics.median(seconds)
            cpu = statistics.median(each.cpu_seconds for each in figures[name]) / count
            memory = max(each.bytes for each in figures[name])
            print(
                f"  on {count}: median {medians[name][count]:.2f} s; {1000 * cpu:.0f} ms of processor time a host; "
                f"command {memory / 1e6:.0f} MB   ({'  '.join(f'{each:.2f}' for each in seconds)})"
            )
        print(flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return are_reached(medians["status"], max(each.bytes for each in by_count[max(counts)]["status"]))


def are_reached(status: dict[int, float], memory: int) -> bool:
    """Compare `status` with its targets, and print how."""
    most = max(status)
    results = [status[most] <= STATUS_SECONDS, memory <= STATUS_BYTES]
    print(f"status on {most}: {status[most]:.2f} s; target at most {STATUS_SECONDS:g} s: {verdict(results[0])}")
    print(f"  {memory / 1e6:.0f} MB; target at most {STATUS_BYTES / 1e6:g} MB: {verdict(results[1])}")
    if 16 in status and most > 16:
        growth = status[most] / status[16] * 16 / most
        results.append(growth <= GROWTH)
        print(f"  for each host {growth:.2f} times as long as on 16; target at most {GROWTH:g}: {verdict(results[-1])}")
    print()
    return all(results)


if __name__ == "__main__":
    sys.exit(0 if main(tuple(map(int, sys.argv[1:])) or COUNTS) else 1)
