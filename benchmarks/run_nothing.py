"""`run` of a script that does nothing, against `python -c pass` and `status`, each as a whole process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from clusters import cluster_folder, wait_until_warm

ROUNDS = 15
TARGET = 0.15


def python_pass() -> float:
    """Return the seconds that an interpreter takes that does nothing."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def main() -> bool:
    """Measure in turns, since other work on the machine comes and goes; print; return whether the target is reached."""
    with cluster_folder() as cluster:
        script = cluster.folder / "nothing.py"
        script.touch()
        cluster("up", "examples/cluster.yaml")
        wait_until_warm(cluster)
        cluster("run", str(script))
        measured: dict[str, Callable[[], float]] = {
            "python -c pass": python_pass,
            "status": lambda: cluster.seconds("status"),
            "run nothing.py": lambda: cluster.seconds("run", str(script)),
            "run pi --samples 1": lambda: cluster.seconds("run", "pi", "--samples", "1"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in measured}
        for _ in range(ROUNDS):
            for name, measure in measured.items():
                seconds[name].append(measure())
    for name, each in seconds.items():
        print(f"{name:20} median {statistics.median(each):.3f} s, fastest {min(each):.3f} s")
    return statistics.median(seconds["run nothing.py"]) <= TARGET


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
