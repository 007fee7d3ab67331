"""Clusters for benchmarks: started and stopped by the real command, each with a state folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "tfcluster")


class Cluster:
    """Runs the command with a state folder of its own.

    Args:
        folder: The folder of its files.
        command: The command line of tfcluster.
        environment: Changes to its environment; None for state and sockets in `folder`.
    """

    def __init__(
        self, folder: Path, command: Sequence[str] = COMMAND, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.command = command
        own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder)}
        self.environment = {**os.environ, **(environment or own), "PYTHONPATH": str(Path(__file__).parent.parent)}

    def __call__(self, *arguments: str) -> str:
        """Run a command and return its output."""
        return subprocess.run(
            [*self.command, *arguments], env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def seconds(self, *arguments: str) -> float:
        """Return the wall time of a command as a whole process."""
        began = time.perf_counter()
        self(*arguments)
        return time.perf_counter() - began

    def status(self) -> Any:
        """Return the status as JSON values."""
        return json.loads(self("status", "-o", "json"))


@contextlib.contextmanager
def cluster_folder() -> Iterator[Cluster]:
    """Yield a cluster that is not up yet; stop it at the end if it is."""
    with tempfile.TemporaryDirectory(prefix="tfc") as folder, taken_down(Cluster(Path(folder))) as cluster:
        yield cluster


@contextlib.contextmanager
def taken_down(cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster and stop it at the end, also after an exception."""
    try:
        yield cluster
    finally:
        command = [*cluster.command, "down", "--all"]
        subprocess.run(command, env=cluster.environment, capture_output=True, check=False)


def wait_until_warm(cluster: Cluster) -> None:
    """Wait until the fork server has imported TensorFlow, which takes both cores for a while."""
    cluster("run", "pi", "--samples", "1")
