"""The first `run` after `up`, whose fork server imports TensorFlow first, against `python -c "import tensorflow"`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from clusters import cluster_folder

ROUNDS = 5
#: The first run waits for one import, and does nothing else that takes long.
TARGET = 1.25


def import_tensorflow() -> float:
    """Return the seconds that an interpreter takes that imports TensorFlow."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> bool:
    """Measure in turns, since other work on the machine comes and goes; print; return whether the target is reached."""
    names = ("import tensorflow", "up", "first run nothing.py", "second run nothing.py")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    import_tensorflow()  # reads the files into the cache
    with cluster_folder() as cluster:
        script = cluster.folder / "nothing.py"
        script.touch()
        for _ in range(ROUNDS):
            seconds["import tensorflow"].append(import_tensorflow())
            seconds["up"].append(cluster.seconds("up", "examples/cluster.yaml"))
            for name in names[2:]:
                seconds[name].append(cluster.seconds("run", str(script)))
            cluster("down")
    for name, each in seconds.items():
        print(f"{name:22} median {statistics.median(each):.2f} s, fastest {min(each):.2f} s")
    ratio = statistics.median(seconds["first run nothing.py"]) / statistics.median(seconds["import tensorflow"])
    print(f"the first run takes {ratio:.2f} times as long as the import; target: at most {TARGET}")
    return ratio <= TARGET


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
