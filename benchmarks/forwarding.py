"""What `network: private` costs between two hosts, against `network: open`, whose tasks connect to each other directly:
reading 1 GB of variables, and `run linear`, side by side in one run.

The hosts are network namespaces with an sshd each, as the tests have them, which takes root. They share this machine's
cores, so that what two real hosts encrypt and decrypt at the same time competes here with what the servers do. With
fewer cores than the two servers and the two forwarders need, the targets are lower: see docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

from clusters import COMMAND, Cluster, taken_down
from side_by_side import verdict

# Before the packages that are installed: some bring a module of that name.
sys.path.insert(0, str(Path(__file__).parent.parent))
from tests import requirements
from tests.hosts import SshHosts, ssh_hosts

ROUNDS = 5
#: The least part of the speed in the clear that a transfer has, and how many times as long `run linear` may take: with
#: a core for each server and each forwarder, and with fewer cores.
TARGETS, TARGETS_OF_FEW_CORES = (0.5, 1.5), (0.25, 1.8)
BUSY_PROCESSES = 4
NETWORKS = ("open", "private")

# Has the worker read variables of the ps and add up their numbers, and prints GB/s.
SCRIPT = """
import os, time
import tensorflow.compat.v1 as tf
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        variables = [tf.get_variable(f"v{n}", 25_000_000, initializer=tf.ones_initializer()) for n in range(10)]
        values = [variable.read_value() for variable in variables]
    with tf.device("/job:worker/task:0"):
        sums = [tf.reduce_sum(value) for value in values]
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # it would add up where the variables are
    with tf.Session(os.environ["TFCLUSTER_MASTER"], config=config) as session:
        session.run(tf.global_variables_initializer())
        session.run(sums)
        began = time.perf_counter()
        session.run(sums)
        print("GB/s", 1 / (time.perf_counter() - began))
"""


def spec_of(cluster: Cluster, hosts: SshHosts, network: str) -> Path:
    """Write the spec of a cluster whose worker is on one host and whose ps is on the other one."""
    spec = cluster.folder / f"{network}.yaml"
    listed = {name: {"address": hosts.address(name), "python": sys.executable} for name in hosts.names}
    worker, ps = hosts.names
    jobs = {"worker": {"tasks": 1, "hosts": [worker]}, "ps": {"tasks": 1, "hosts": [ps]}}
    spec.write_text(json.dumps({"name": network, "network": network, "hosts": listed, "jobs": jobs}))
    return spec


def transfer(cluster: Cluster, network: str) -> float:
    """Return the GB/s at which variables are read from the other host."""
    folder = cluster.folder / "code"
    folder.mkdir(exist_ok=True)
    (folder / "transfer.py").write_text(SCRIPT)
    output = cluster("run", "-c", network, str(folder / "transfer.py"))
    return float(next(line for line in output.splitlines() if line.startswith("GB/s")).split()[1])


def linear(cluster: Cluster, network: str) -> float:
    """Return the seconds of a training whose parameters are on the other host."""
    output = cluster("run", "linear", "--steps", "5000", "--seed", "1", "-c", network, "-o", "json")
    return float(json.loads(output.splitlines()[-1])["seconds"])


def choose_targets() -> tuple[float, float]:
    """Return the targets by which to judge on this machine, and print which they are and why."""
    cores = len(os.sched_getaffinity(0))
    is_few = cores < BUSY_PROCESSES
    speed, times = TARGETS_OF_FEW_CORES if is_few else TARGETS
    why = "share fewer than" if is_few else "have at least"
    print(f"targets {speed:g} and {times:g}: two servers and two forwarders {why} {BUSY_PROCESSES} cores, {cores}")
    return speed, times


def main() -> bool:
    """Measure and print; return whether the targets are reached."""
    if missing := requirements.missing(["sshd"]):
        print(f"forwarding between hosts: left out, {requirements.explain(missing)}\n")
        return True
    speed_target, times_target = choose_targets()
    figures: dict[str, list[tuple[float, float]]] = {"transfer": [], "linear": []}
    with (
        ssh_hosts("near", "far") as hosts,
        taken_down(Cluster(hosts.folder, hosts.command(*COMMAND), hosts.environment)) as cluster,
    ):
        for network in NETWORKS:
            cluster("up", str(spec_of(cluster, hosts, network)))
        for name, measure in (("transfer", transfer), ("linear", linear)):
            for _ in range(ROUNDS):
                clear, private = (measure(cluster, network) for network in NETWORKS)
                figures[name].append((clear, private))
    speed = statistics.median(private / clear for clear, private in figures["transfer"])
    times = statistics.median(private / clear for clear, private in figures["linear"])
    for title, unit, name in (("reading 1 GB of variables", "GB/s", "transfer"), ("run linear", "s", "linear")):
        print(f"{title}, between two hosts")
        for index, network in enumerate(NETWORKS):
            print(f"  {network}: " + "  ".join(f"{pair[index]:.3f}" for pair in figures[name]) + f" {unit}")
    print(
        f"  speed of a transfer: {speed:.2f} of that in the clear; target {speed_target:g}: "
        f"{verdict(speed >= speed_target)}"
    )
    print(f"  run linear: {times:.2f} times as long; target {times_target:g}: {verdict(times <= times_target)}\n")
    return speed >= speed_target and times <= times_target


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
