"""`run pi --samples 1e9` as a whole command, against the best chunked NumPy with a process for each core."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from clusters import cluster_folder, wait_until_warm
from side_by_side import compare

SAMPLES = 1_000_000_000

# float32 and chunks that stay in the cache: five times as fast as one array of float64.
NUMPY = """
import sys
from multiprocessing import Pool
import numpy as np

def count(task):
    seed, points = task
    generator, chunk, inside = np.random.default_rng(seed), 1 << 15, 0
    x, y = np.empty(chunk, np.float32), np.empty(chunk, np.float32)
    for first in range(0, points, chunk):
        generator.random(out=x, dtype=np.float32)
        generator.random(out=y, dtype=np.float32)
        x *= x
        y *= y
        x += y
        inside += np.count_nonzero(x[: points - first] <= 1)
    return inside

if __name__ == "__main__":
    points, cores = int(sys.argv[1]), int(sys.argv[2])
    with Pool(cores) as pool:
        tasks = [(seed, points // cores) for seed in np.random.SeedSequence().spawn(cores)]
        print(4 * sum(pool.map(count, tasks, 1)) / points)
"""


def numpy_on_all_cores() -> float:
    """Return the seconds of the NumPy program as a whole process."""
    cores = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", NUMPY, str(SAMPLES), str(cores)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> bool:
    """Measure and print; return whether the target is reached."""
    with cluster_folder() as cluster:
        cluster("up", "examples/cluster.yaml")
        wait_until_warm(cluster)
        first = cluster.seconds("run", "pi", "--samples", str(SAMPLES))
        print(f"the first run, which compiles: {first:.3f} s")
        return compare(
            f"run pi --samples {SAMPLES:.0e}, against NumPy in float32 with a process for each core",
            "s",
            lambda: cluster.seconds("run", "pi", "--samples", str(SAMPLES)),
            numpy_on_all_cores,
            rounds=5,
            target=1,
        )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
