"""`tfcluster status` against `python -c "import tensorflow"`, each as a whole process."""

from __future__ import annotations

import subprocess
import sys
import time

from clusters import cluster_folder, wait_until_warm
from side_by_side import compare


def import_tensorflow() -> float:
    """Seconds that a bare import takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> bool:
    """Measure and print; return whether the target is reached."""
    with cluster_folder() as cluster:
        cluster("up", "examples/cluster.yaml")
        wait_until_warm(cluster)
        return compare(
            "status, against python -c 'import tensorflow'",
            "s",
            lambda: cluster.seconds("status"),
            import_tensorflow,
            rounds=7,
            target=8,
        )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
