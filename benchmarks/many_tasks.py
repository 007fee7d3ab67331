"""`up`, `restart` and `down` of 16, 32, 64 and 128 tasks on this machine, and `run pi` on all of them, as ratios to 16.

A time that grows in proportion to the number of tasks has a ratio of 8 at 128 tasks.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict

from clusters import cluster_folder, wait_until_warm
from side_by_side import verdict

COUNTS = (16, 32, 64, 128)
ROUNDS = 1
COMMANDS = {
    "run pi, first": ("run", "pi", "--samples", "1e8", "--seed", "1"),
    "run pi, again": ("run", "pi", "--samples", "1e8", "--seed", "1"),
    "restart": ("restart", "worker", "--yes"),
    "down": ("down",),
}


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
        return seconds | {name: cluster.seconds(*command) for name, command in COMMANDS.items()}


def main(counts: tuple[int, ...] = COUNTS) -> bool:
    """Measure and print; return whether no time grows more than in proportion to the number of tasks."""
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
            target = count / min(counts)
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
