"""`run pi --samples 1e7` as a whole command, against a tutorial's program on the same servers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from clusters import cluster_folder, wait_until_warm
from side_by_side import compare

SAMPLES = 10_000_000


def main() -> bool:
    """Measure and print; return whether the target is reached."""
    with cluster_folder() as cluster:
        cluster("up", "examples/cluster.yaml")
        wait_until_warm(cluster)
        workers = [task["address"] for task in cluster.status()["tasks"] if task["job"] == "worker"]
        script = Path(__file__).parent / "tutorial_pi.py"

        def tutorial_program() -> float:
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, str(script), str(SAMPLES), *workers],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            return time.perf_counter() - began

        return compare(
            f"run pi --samples {SAMPLES:.0e}, against points made by NumPy in the client",
            "s",
            lambda: cluster.seconds("run", "pi", "--samples", str(SAMPLES)),
            tutorial_program,
            rounds=5,
            target=5,
        )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
