"""Scripts of one's own: from Enter to the first step of two workers, and a small script as a whole command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clusters import Cluster, cluster_folder, wait_until_warm
from side_by_side import compare

FIRST_STEP = str(Path(__file__).parent / "first_step.py")
#: It brings a cluster up before TensorFlow is imported. By hand, each of two idle cores imports it at once: 0.85 to
#: 0.88 of the speed there; on busy cores, where two imports take twice the time, 1.1 to 1.3.
COLD_TARGET = 0.75
SMALL = str(Path(__file__).parent / "small_script.py")


def until_first_step(commands: Sequence[Sequence[str]], environments: Sequence[dict[str, str]]) -> float:
    """Return the seconds from the start of commands until one of them says that the first step is done."""
    began = time.perf_counter()
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for command, environment in zip(commands, environments, strict=True)
    ]
    first = processes[0].stdout
    assert first is not None
    assert any("first step" in line for line in first), "it has ended without"
    seconds = time.perf_counter() - began
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    return seconds


def launch(cluster: Cluster, *options: str) -> float:
    """Measure `tfcluster launch`."""
    return until_first_step([[*cluster.command, "launch", *options, FIRST_STEP]], [cluster.environment])


def by_hand() -> float:
    """Measure two processes that are started by hand, each with its TF_CONFIG."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(2)]
    workers = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    environments = [
        {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}),
        }
        for index in range(2)
    ]
    return until_first_step([[sys.executable, FIRST_STEP]] * 2, environments)


def python() -> float:
    """Measure a small script as `python` runs it."""
    began = time.perf_counter()
    subprocess.run([sys.executable, SMALL], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> bool:
    """Measure and print; return whether all targets are reached."""
    with cluster_folder() as cluster:
        title = "two workers, from Enter to their first step, against two processes started by hand"
        cold = compare(
            f"launch --workers 2: {title}",
            "s",
            lambda: launch(cluster, "--workers", "2"),
            by_hand,
            rounds=3,
            target=COLD_TARGET,
        )
        cluster("up", "examples/cluster.yaml")
        wait_until_warm(cluster)
        warm = compare(
            f"launch on a cluster that is up: {title}", "s", lambda: launch(cluster), by_hand, rounds=3, target=1
        )
        script = compare(
            "run SCRIPT, a small one, against python SCRIPT",
            "s",
            lambda: cluster.seconds("run", SMALL),
            python,
            rounds=5,
            target=3,
        )
    return cold and warm and script


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
