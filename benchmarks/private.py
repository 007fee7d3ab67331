"""What `network: private` costs on one machine, against `network: closed`: programs, and `up` of 16 tasks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from clusters import Cluster, cluster_folder, wait_until_warm
from side_by_side import report

TASKS = 16
ROUNDS = 9
#: The price that is allowed: 5 % of the time of a program, 10 % of that of `up`.
PROGRAM_TARGET, UP_TARGET = 1 / 1.05, 1 / 1.1
#: Each long enough that the network of the servers matters, and not only the start of a command.
PROGRAMS = (
    ("pi", "--samples", "3e8", "--seed", "1"),
    ("mean", "--random", "3e8", "--seed", "1"),
    ("linear", "--steps", "20000", "--seed", "1"),
)
_SPEC = "name: {name}\nnetwork: {network}\njobs:\n  ps: {{tasks: 1}}\n  worker: {{tasks: {workers}}}\n"


def main() -> bool:
    """Measure and print; return whether the targets are reached."""
    with contextlib.ExitStack() as stack:
        private, closed = (_spec(stack.enter_context(cluster_folder()), name, 2) for name in ("private", "closed"))
        for cluster in (private, closed):
            cluster("up", str(cluster.folder / "cluster.yaml"))
            wait_until_warm(cluster)
        reached = [_compare(f"run {' '.join(words)}", private, closed, words) for words in PROGRAMS]
    return all([*reached, _compare_up()])


def _compare(title: str, private: Cluster, closed: Cluster, words: Sequence[str]) -> bool:
    for cluster in (private, closed):  # the first run compiles
        cluster("run", *words)
    pairs = [_in_turn(number, private, closed, ("run", *words)) for number in range(ROUNDS)]
    return report(f"{title}, private against closed", "s", pairs, PROGRAM_TARGET)


def _in_turn(number: int, private: Cluster, closed: Cluster, words: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of both; which one is first alternates."""
    if number % 2:
        second = closed.seconds(*words)
        return private.seconds(*words), second
    first = private.seconds(*words)
    return first, closed.seconds(*words)


def _compare_up() -> bool:
    pairs = []
    for number in range(ROUNDS):
        order = ("private", "closed") if number % 2 else ("closed", "private")
        seconds = {network: _seconds_of_up(network) for network in order}
        pairs.append((seconds["private"], seconds["closed"]))
    return report(f"up of {TASKS} tasks, private against closed", "s", pairs, UP_TARGET)


def _seconds_of_up(network: str) -> float:
    with cluster_folder() as cluster:
        spec = _spec(cluster, network, TASKS - 1)
        return spec.seconds("up", str(cluster.folder / "cluster.yaml"))


def _spec(cluster: Cluster, network: str, workers: int) -> Cluster:
    """Write the spec of a cluster, and return the cluster."""
    text = _SPEC.format(name=network, network=network, workers=workers)
    (cluster.folder / "cluster.yaml").write_text(text)
    return cluster


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
