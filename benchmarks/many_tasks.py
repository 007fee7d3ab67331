"""`up`, `restart` and `down` of 16 and 64 tasks on this machine, and `run` and `status` on them, as ratios to 16.

A time that grows in proportion to the number of tasks has a ratio of 4 at 64 tasks. Other numbers can be given:
`many_tasks.py 16 32 64 128`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import defaultdict

from clusters import Cluster, cluster_folder, wait_until_warm
from side_by_side import verdict

COUNTS = (16, 64)
ROUNDS = 3
# The command, how often it runs at the same time, and the largest ratio of 64 tasks to 16.
COMMANDS = {
    "run pi, first": (("run", "pi", "--samples", "1e8", "--seed", "1"), 1, 2.0),
    "run pi, again": (("run", "pi", "--samples", "1e8", "--seed", "1"), 1, 2.0),
    "20 status at once": (("status",), 20, 2.0),
    "8 run pi at once": (("run", "pi", "--samples", "1e6"), 8, 2.0),
    "restart": (("restart", "worker", "--yes"), 1, 4.0),
    "down": (("down",), 1, 4.0),
}
TARGETS = {"up": 4.0, **{name: target for name, (_, _, target) in COMMANDS.items()}}


def measure(count: int) -> dict[str, float]:
    """Return the seconds of each command on a new cluster.

    Args:
        count: The number of tasks.
    """
    with cluster_folder() as cluster:
        spec = cluster.folder / "many.yaml"
        spec.write_text(f"jobs:\n  worker: {{tasks: {count}}}\n")
        seconds = {"up": cluster.seconds("up", str(spec))}
        wait_until_warm(cluster)
        return seconds | {name: seconds_of(cluster, command, times) for name, (command, times, _) in COMMANDS.items()}


def seconds_of(cluster: Cluster, command: tuple[str, ...], times: int) -> float:
    """Return the wall time of a command that runs a number of times at once."""
    began = time.perf_counter()
    processes = [
        subprocess.Popen(
            [*cluster.command, *command],
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(times)
    ]
    codes = [process.wait() for process in processes]
    assert not any(codes), f"{command}: {codes}"
    return time.perf_counter() - began


def main(counts: tuple[int, ...] = COUNTS) -> bool:
    """Measure and print; return whether the targets are reached, which are given for 64 tasks and are in proportion."""
    figures: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(ROUNDS):
        for count in counts:
            for name, seconds in measure(count).items():
                figures[name][count].append(seconds)
    is_reached = True
    for name, by_count in figures.items():
        print(name)
        fewest = by_count[min(counts)]
        for count, times in by_count.items():
            ratio = statistics.median(many / few for many, few in zip(times, fewest, strict=True))
            target = max(1.0, TARGETS[name] * count / (4 * min(counts)))
            is_reached = is_reached and ratio <= target
            listed = "  ".join(f"{each:.2f}" for each in times)
            print(
                f"  {count} tasks: median {statistics.median(times):.2f} s   ({listed});"
                f" ratio {ratio:.1f}, target at most {target:g}: {verdict(ratio <= target)}"
            )
        print(flush=True)
    return is_reached


if __name__ == "__main__":
    sys.exit(0 if main(tuple(int(each) for each in sys.argv[1:]) or COUNTS) else 1)
