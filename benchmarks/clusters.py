"""Clusters for benchmarks: brought up and taken down by the real command in folders of their own."""

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
        folder: For its files.
        command: What runs the command.
        environment: What is different in its environment; None for state and sockets in `folder`.
    """

    def __init__(
        self, folder: Path, command: Sequence[str] = COMMAND, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.command = command
        own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder)}
        self.environment = {**os.environ, **(environment or own), "PYTHONPATH": str(Path(__file__).parent.parent)}

    def __call__(self, *arguments: str) -> str:
        """Run a command and return what it prints."""
        return subprocess.run(
            [*self.command, *arguments], env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def seconds(self, *arguments: str) -> float:
        """The wall time of a command as a whole process."""
        began = time.perf_counter()
        self(*arguments)
        return time.perf_counter() - began

    def status(self) -> Any:
        """The status as JSON values."""
        return json.loads(self("status", "-o", "json"))


@contextlib.contextmanager
def cluster_folder() -> Iterator[Cluster]:
    """A cluster that is not up yet; whatever is up at the end is taken down."""
    with tempfile.TemporaryDirectory(prefix="tfc") as folder, taken_down(Cluster(Path(folder))) as cluster:
        yield cluster


@contextlib.contextmanager
def taken_down(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster that is taken down at the end, whatever happens."""
    try:
        yield cluster
    finally:
        command = [*cluster.command, "down", "--all"]
        subprocess.run(command, env=cluster.environment, capture_output=True, check=False)


def wait_until_warm(cluster: Cluster) -> None:
    """Let the agent's interpreter finish importing TensorFlow, which takes both cores for a while."""
    cluster("run", "pi", "--samples", "1")
