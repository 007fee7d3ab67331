"""`sweep` of 40 trials that do nothing, on one place, against the time that the trials' processes exist."""

from __future__ import annotations

import json
import sys
import time

from clusters import Cluster, cluster_folder, wait_until_warm
from side_by_side import report

TRIALS = 40
ROUNDS = 3
#: All of the command, with its start and its end, takes at most 1.3 times what the processes take.
TARGET = 1 / 1.3


def sweep(cluster: Cluster, script: str) -> tuple[float, float]:
    """Return the seconds of the whole command, and those of all trials together."""
    began = time.perf_counter()
    output = cluster("sweep", "-o", "json", "--on", "ps", script, f"{{1..{TRIALS}}}")
    seconds = time.perf_counter() - began
    trials = json.loads(output.splitlines()[-1])["result"]["trials"]
    assert [trial["state"] for trial in trials] == ["succeeded"] * TRIALS
    return seconds, sum(trial["seconds"] for trial in trials)


def main() -> bool:
    """Measure and print; return whether the target is reached."""
    with cluster_folder() as cluster:
        script = cluster.folder / "nothing.py"
        script.touch()
        cluster("up", "examples/cluster.yaml")
        wait_until_warm(cluster)
        pairs = [sweep(cluster, str(script)) for _ in range(ROUNDS)]
    title = f"sweep of {TRIALS} trials of nothing, one at a time, against what their processes take"
    return report(title, "s", pairs, TARGET)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
