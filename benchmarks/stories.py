"""How many functions of tfcluster are entered, by all of its processes, in the stories of docs/architecture.md.

With `--list` the functions are printed too, by module. A function counts once for a story, however often it is entered.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from clusters import Cluster, taken_down, wait_until_warm

ROOT = Path(__file__).parent.parent
RECORDER = ROOT / "benchmarks" / "recorder"


class Stories:
    """Counts what the processes of a cluster enter while a story happens.

    Args:
        folder: The folder of its files.
    """

    def __init__(self, folder: Path) -> None:
        self._entered, self._story = folder / "entered", folder / "story"
        self._entered.touch()
        self._story.write_bytes(bytes(8))
        self._titles: list[str] = []

    def record_in(self, cluster: Cluster) -> None:
        """Record the processes that the cluster starts from now on."""
        parameters = {"root": str(ROOT / "tfcluster"), "file": str(self._entered), "story": str(self._story)}
        cluster.environment["ENTERED"] = json.dumps(parameters)
        cluster.environment["PYTHONPATH"] += f":{RECORDER}"

    def tell(self, title: str, action: Callable[[], object]) -> None:
        """Record what is entered while a function is called."""
        self._titles.append(title)
        self._set(len(self._titles))
        action()
        self._set(0)

    def _set(self, number: int) -> None:
        with self._story.open("r+b") as file:  # processes have mapped it
            file.write(number.to_bytes(8, "little"))

    def print(self, *, with_functions: bool) -> None:
        """Print the numbers of functions and modules of each story."""
        entered: dict[int, set[tuple[str, int, str]]] = defaultdict(set)
        for line in self._entered.read_text().splitlines():
            number, path, first_line, name = json.loads(line)
            entered[number].add((path, first_line, name))
        print("functions  modules  story")
        for number, title in enumerate(self._titles, start=1):
            print(f"{len(entered[number]):9}{len({path for path, *_ in entered[number]}):9}  {title}")
            if with_functions:
                print(*(f"{'':20}{path}:{line} {name}" for path, line, name in sorted(entered[number])), sep="\n")


def kill_worker_0(cluster: Cluster, pid: int) -> None:
    """Kill a server, and wait until the agent has written that it is ready again: no command is entered."""
    (events,) = cluster.folder.glob("state/tfcluster/*/*/logs/events.log")

    def ready() -> int:
        return sum('"event":"ready","task":"worker:0"' in line for line in events.read_text().splitlines())

    before = ready()
    os.kill(pid, signal.SIGKILL)
    while ready() == before:
        time.sleep(0.01)


def main() -> None:
    """Bring a cluster up, run a program, and kill a server."""
    with tempfile.TemporaryDirectory(prefix="tfc") as folder, taken_down(Cluster(Path(folder))) as cluster:
        stories = Stories(Path(folder))
        stories.record_in(cluster)
        stories.tell("up, until all tasks are ready", lambda: cluster("up", "examples/cluster.yaml"))
        wait_until_warm(cluster)
        stories.tell("run pi, there and back", lambda: cluster("run", "pi", "--samples", "1e5"))
        pid = next(task["pid"] for task in cluster.status()["tasks"] if task["job"] == "worker" and task["index"] == 0)
        stories.tell("a killed server is ready again", lambda: kill_worker_0(cluster, pid))
        stories.tell("status", lambda: cluster("status"))
        stories.print(with_functions="--list" in sys.argv)


if __name__ == "__main__":
    main()
