"""`up`, `status` and `down` of a cluster on 1, 2, 4 and 8 hosts that are reached by ssh, with one task on each;
`status`, `run pi` and `down` of a cluster on one such host, against the same on this machine; and `status` of it while
another command reads 1 GB of logs from the host slowly, against `status` alone.

The hosts are network namespaces with an sshd each, as the tests have them, which takes root. All share this machine's
cores: what real hosts do at the same time is done here partly in turn, and real hosts have a better ratio.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from clusters import COMMAND, Cluster, taken_down, wait_until_warm
from side_by_side import verdict

# Before the packages that are installed: some bring a module of that name.
sys.path.insert(0, str(Path(__file__).parent.parent))
from tests import requirements
from tests.hosts import SshHosts, ssh_hosts
from tfcluster.transport.provision import bootstrap, code_bundle

COUNTS = (1, 2, 4, 8)
ROUNDS = 3
# What a command on a cluster with a host elsewhere may take longer than the same command here, in seconds, from the
# second command on: the link has no delay, and its connection is warm.
REMOTE_TARGET = 0.2
REMOTE_ROUNDS = 7
REMOTE_COMMANDS = {
    "status": ("status",),
    "run pi": ("run", "pi", "--samples", "1e5", "--seed", "1"),
    "down": ("down",),
}

# How many times as long `status` may take beside the slow reader as alone.
BESIDE_TARGET = 2.0
BESIDE_ROUNDS = 9
OUTPUT_LINES, OUTPUT_LINE_BYTES = 1_000_000, 1_000
READER_BYTES, READER_PAUSE = 200_000, 0.1  # 2 MB/s

FIRST, LATER, STATUS, DOWN = "up, first contact", "up, later contact", "status", "down"
# How many times as long as on one host `up` may take on the most hosts. A host keeps a core busy nearly all the time: a
# later `up` of 1.1 s takes it 0.9 s of processor time, most of it to load TensorFlow's library and the agent's modules.
# So 8 hosts on two cores cannot take less than 3.2 times as long; in turn they would take 8 times. At the first contact
# each host compiles the modules too.
_PROPORTION = max(2.0, max(COUNTS) / len(os.sched_getaffinity(0)))
TARGETS = {FIRST: 1.25 * _PROPORTION, LATER: _PROPORTION}
# Seconds by command and number of hosts, round by round.
Figures = dict[str, dict[int, list[float]]]


def measure(cluster: Cluster, hosts: SshHosts, count: int, figures: Figures) -> dict[str, int]:
    """Have each command measured once on the first hosts; the bytes that each `up` sent to one of them."""
    names = hosts.names[:count]
    spec = cluster.folder / f"on{count}.yaml"
    listed = [f"  {name}: {{address: {hosts.address(name)}, python: {sys.executable}}}\n" for name in names]
    spec.write_text(f"name: bench\nhosts:\n{''.join(listed)}jobs:\n  worker: {{tasks: {count}}}\n")
    for name in names:
        shutil.rmtree(hosts.home(name) / "cache" / "tfcluster", ignore_errors=True)
    received: dict[str, int] = {}
    for contact in (FIRST, LATER):
        before = bytes_received(hosts, names[0])
        figures[contact][count].append(cluster.seconds("up", str(spec)))
        received[contact] = bytes_received(hosts, names[0]) - before
        wait_until_warm(cluster)
        figures[STATUS][count].append(cluster.seconds("status"))
        figures[DOWN][count].append(cluster.seconds("down"))
    return received


def bytes_received(hosts: SshHosts, name: str) -> int:
    """What a host's network interface has received so far."""
    [link] = json.loads(hosts.network[name].ip("-s", "-json", "link", "show", "eth0"))
    return int(link["stats64"]["rx"]["bytes"])


def report(what: str, figures: dict[int, list[float]]) -> dict[int, float]:
    """Print a command's figures; by the number of hosts how many times as long as on the fewest hosts it took."""
    print(what)
    one = figures[min(figures)]
    ratios = {}
    for count, seconds in figures.items():
        ratios[count] = statistics.median(many / few for many, few in zip(seconds, one, strict=True))
        shown = "  ".join(f"{each:.3f}" for each in seconds)
        print(f"  on {count}: median {statistics.median(seconds):.3f} s, ratio {ratios[count]:.2f}   ({shown})")
    return ratios


def compare_remote(cluster: Cluster, hosts: SshHosts) -> bool:
    """Measure commands on a cluster here and on a cluster elsewhere in turn; print the figures.

    Returns:
        Whether the target is reached.
    """
    name = hosts.names[0]
    remote = f"hosts:\n  {name}: {{address: {hosts.address(name)}, python: {sys.executable}}}\n"
    figures: dict[str, dict[str, list[float]]] = {what: {"here": [], "there": []} for what in REMOTE_COMMANDS}
    for _ in range(REMOTE_ROUNDS):
        for where, text in {"here": "", "there": remote}.items():
            spec = cluster.folder / f"{where}.yaml"
            spec.write_text(f"name: {where}\n{text}jobs:\n  worker: {{tasks: 1}}\n")
            cluster("up", str(spec))
            cluster("run", "pi", "--samples", "1", "-c", where)
        for what, command in REMOTE_COMMANDS.items():
            for where in figures[what]:
                figures[what][where].append(cluster.seconds(*command, "-c", where))
    is_reached = True
    for what, seconds in figures.items():
        print(f"{what}, on a host elsewhere against the same here, from the second command on")
        for where, each in seconds.items():
            print(f"  {where}: median {statistics.median(each):.3f} s   ({'  '.join(f'{one:.3f}' for one in each)})")
        difference = statistics.median(there - here for here, there in zip(*seconds.values(), strict=True))
        is_near = difference <= REMOTE_TARGET
        is_reached = is_reached and is_near
        print(f"  difference: median {difference:.3f} s; target at most {REMOTE_TARGET:g} s: {verdict(is_near)}\n")
    return is_reached


def compare_beside_reader(cluster: Cluster, hosts: SshHosts) -> bool:
    """Measure `status` of a cluster elsewhere alone, and beside a slow reader of a run's logs; print the figures.

    Returns:
        Whether the target is reached.
    """
    name = hosts.names[0]
    spec, script = cluster.folder / "logs.yaml", cluster.folder / "much.py"
    spec.write_text(
        f"name: logs\nhosts:\n  {name}: {{address: {hosts.address(name)}, python: {sys.executable}}}\n"
        "jobs:\n  worker: {tasks: 1}\nlogs: {run: 2 GB, runs: 4 GB}\n"
    )
    line = "x" * (OUTPUT_LINE_BYTES - 1)
    script.write_text(f"for number in range({OUTPUT_LINES}):\n    print({line!r})\n")
    cluster("up", str(spec))
    run = cluster("run", "--detach", "-c", "logs", str(script)).split()[0]
    attach = [*cluster.command, "attach", run, "-c", "logs"]
    subprocess.run(attach, env=cluster.environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(BESIDE_ROUNDS):
        alone.append(cluster.seconds("status", "-c", "logs"))
        with slow_reader(cluster, run):
            beside.append(cluster.seconds("status", "-c", "logs"))
    cluster("down", "-c", "logs")
    print(f"status, beside a command that reads {OUTPUT_LINES * OUTPUT_LINE_BYTES / 1e9:g} GB of logs slowly")
    for what, each in (("alone", alone), ("beside the reader", beside)):
        print(f"  {what}: median {statistics.median(each):.3f} s   ({'  '.join(f'{one:.3f}' for one in each)})")
    ratio = statistics.median(second / first for first, second in zip(alone, beside, strict=True))
    is_reached = ratio <= BESIDE_TARGET
    print(f"  ratio: median {ratio:.2f}; target at most {BESIDE_TARGET:g}: {verdict(is_reached)}\n", flush=True)
    return is_reached


@contextlib.contextmanager
def slow_reader(cluster: Cluster, run: str) -> Iterator[None]:
    """Have a command that shows the logs of a run, read slowly, within the context, once its first lines have come."""
    stopped = threading.Event()
    command = [*cluster.command, "logs", run, "-c", "logs"]
    with subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout
        assert output.read(READER_BYTES)

        def read_on() -> None:
            while not stopped.wait(READER_PAUSE) and output.read(READER_BYTES):
                continue

        reader = threading.Thread(target=read_on)
        reader.start()
        try:
            yield
            assert reader.is_alive(), "the output ended before the measurement"
        finally:
            stopped.set()
            process.kill()
            reader.join()


def compare_counts(cluster: Cluster, hosts: SshHosts, counts: tuple[int, ...]) -> bool:
    """Measure commands on clusters of different sizes in turn; print the figures.

    Returns:
        Whether the target is reached.
    """
    figures: Figures = defaultdict(lambda: defaultdict(list))
    for _ in range(ROUNDS):
        for count in counts:
            received = measure(cluster, hosts, count, figures)
    ratios = {what: report(what, figures[what]) for what in (FIRST, LATER, STATUS, DOWN)}
    session = len(json.dumps(bootstrap()))
    print(f"bytes of code sent to a host: {len(code_bundle())} at the first contact, {session} in a session")
    print(f"  all that it received, of ssh too: {received[FIRST]} at the first `up`, {received[LATER]} at a later one")
    reached = []
    for contact, target in TARGETS.items():
        ratio = ratios[contact][max(counts)]
        reached.append(ratio < target)
        print(f"{contact}: on {max(counts)} hosts, on this machine's cores, {ratio:.2f} times as long as on one")
        print(f"  target below {target:g}: {verdict(reached[-1])}", flush=True)
    print()
    return all(reached)


def main(counts: tuple[int, ...] = COUNTS) -> bool:
    """Measure and print; return whether the targets are reached."""
    if missing := requirements.missing(["sshd"]):
        print(f"commands on hosts elsewhere: left out, {requirements.explain(missing)}\n")
        return True
    with ssh_hosts(*(f"h{number}" for number in range(max(counts)))) as hosts:
        here = Cluster(hosts.folder, hosts.command(*COMMAND), hosts.environment)
        with taken_down(here) as cluster:
            results = [
                compare_remote(cluster, hosts),
                compare_beside_reader(cluster, hosts),
                compare_counts(cluster, hosts, counts),
            ]
    return all(results)


if __name__ == "__main__":
    sys.exit(0 if main(tuple(map(int, sys.argv[1:])) or COUNTS) else 1)
