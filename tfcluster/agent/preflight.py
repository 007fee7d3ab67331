"""Whether this host can start a topology's tasks, told before any is started; chooses what it leaves out."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from tfcluster.agent.ports import PortAllocator, port_owner
from tfcluster.core.text import pluralize
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.errors import ClusterError
from tfcluster.processes.netinfo import addresses_of
from tfcluster.processes.port_isolation import OPEN_HINT, PortIsolationError, check_support

#: Free bytes that the state folder's disk must have.
_LEAST_BYTES = 50 * 2**20


@dataclass(frozen=True)
class Allocation:
    """What a host chose for a topology's tasks, by a task's name.

    Attributes:
        ports: The ports that the topology leaves out.
        gpus: The GPUs of the tasks that have some.
    """

    ports: dict[str, int]
    gpus: dict[str, list[str]]


def examine(
    topology: ClusterTopology,
    host: str,
    folder: Path,
    ports: PortAllocator,
    gpus: Sequence[str],
    ours: Collection[int] = (),
) -> tuple[Allocation, list[ClusterError]]:
    """Hold every port that the topology names for this host, choose those that it leaves out, and hand out GPUs.

    Args:
        topology: The cluster; a task that has its GPUs already keeps them.
        host: What it calls this host.
        folder: Where the cluster's state is to be kept.
        ports: Holds the ports.
        gpus: The host's GPUs.
        ours: The ports of the cluster that is up, which its own tasks have.

    Returns:
        The choices, and all that keeps the host from starting its tasks. When there is anything, nothing is chosen
        and no port is held that was not before.
    """
    before = ports.held
    problems = [*_taken_ports(topology, host, ports, ours), *_foreign_addresses(topology.on(host), host)]
    problems += [*_lack_of_gpus(topology.on(host), host, gpus), *_lack_of_space(folder), *_lack_of_grpc()]
    problems += _ports_stand_open(topology)
    if not problems:
        try:
            return _choose(topology, host, ports, gpus, ours), []
        except ClusterError as problem:
            problems.append(problem)
    ports.keep_only({*before, *ours})  # others may be waiting for theirs to be used
    return Allocation({}, {}), problems


def _choose(
    topology: ClusterTopology, host: str, ports: PortAllocator, gpus: Sequence[str], ours: Collection[int]
) -> Allocation:
    places = [task for task in (*topology.tasks, *topology.reserved) if task.host == host]
    without = [task for task in places if task.port is None]
    chosen = zip(without, ports.choose(len(without), ours), strict=True)
    tasks = topology.on(host)
    used = {gpu for task in tasks for gpu in task.gpu_ids}
    left = (gpu for gpu in gpus if gpu not in used)
    return Allocation(
        {task.name: port for task, port in chosen},
        {task.name: list(islice(left, task.gpus)) for task in tasks if task.gpus and not task.gpu_ids},
    )


def hold_ports(topology: ClusterTopology, host: str, ports: PortAllocator, ours: Collection[int]) -> None:
    """Hold every port that a topology has on this host, all of which are chosen, but those that are ours.

    Raises:
        ClusterError: Somebody has one by now; none is held that was not before.
    """
    before = ports.held
    if problems := _taken_ports(topology, host, ports, ours):
        ports.keep_only({*before, *ours})
        told = "\n".join(problem.message for problem in problems)
        raise ClusterError(told, hint="Nothing was changed. Run the command again: it plans anew.")


def _taken_ports(
    topology: ClusterTopology, host: str, ports: PortAllocator, ours: Collection[int]
) -> list[ClusterError]:
    """Hold the ports that the topology names; why that cannot be, for each that cannot."""
    hint = "Stop that process, or give the task another port in the spec, or leave the port out."
    return [
        ClusterError(problem, hint=hint)
        for task in (*topology.tasks, *topology.reserved)
        if task.host == host and task.port and task.port not in ours
        if (problem := _hold(task.short, task.port, ports))
    ]


def _hold(short: str, port: int, ports: PortAllocator) -> str | None:
    """Hold a port; or say why it cannot be."""
    try:
        if ports.hold(port):
            return None
    except OSError as error:
        return f"{short}: port {port} cannot be used: {error.strerror}"
    return f"{short}: port {port} is taken by {port_owner(port)}"


def _foreign_addresses(tasks: Sequence[Task], host: str) -> Iterator[ClusterError]:
    """The addresses that others would dial in vain to reach this host's tasks."""
    for address in dict.fromkeys(task.address_host for task in tasks):
        askers = ", ".join(task.short for task in tasks if task.address_host == address)
        if why := _why_not_ours(address):
            yield ClusterError(
                f"{askers}: {address} is not an address of {host}: {why}",
                hint=_own_address(),
            )


def _own_address() -> str:
    """What to name as this host's address; best the one by which ssh has reached it to have this agent started."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4:
        return f"ssh has reached it at {words[2]}: `address: {words[2]}`."
    return "Name an address that `ip address` shows there, or a name that leads to one."


def _why_not_ours(address: str) -> str | None:
    """Why no socket of this machine can have an address, or any that a name stands for; None where one can."""
    why = None
    try:
        for family, kind, protocol, _, found in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.bind(found)
                return None
            except OSError as error:  # one of a kernel without IPv6, say
                why = error.strerror
    except OSError as error:
        return error.strerror
    return why


def _lack_of_gpus(tasks: Sequence[Task], host: str, gpus: Sequence[str]) -> Iterator[ClusterError]:
    needed = sum(task.gpus for task in tasks)
    if needed > len(gpus):
        askers = ", ".join(f"{task.short} {task.gpus}" for task in tasks if task.gpus)
        yield ClusterError(
            f"the tasks ask for {pluralize(needed, 'GPU')} ({askers}), {host} has {len(gpus)}",
            hint="Lower `gpus:` in the spec; `cpus: N` gives a task several CPU devices instead.",
        )


def _lack_of_space(folder: Path) -> Iterator[ClusterError]:
    try:
        found = os.statvfs(folder)
    except OSError:  # somebody has just deleted it: it is made anew before anything is written
        return
    free = found.f_bavail * found.f_frsize
    if free < _LEAST_BYTES or (found.f_files and not found.f_favail):
        yield ClusterError(
            f"{folder}: {free // 2**20} MiB and {found.f_favail} files are free there, for the journal and the logs it "
            f"takes {_LEAST_BYTES // 2**20} MiB",
            hint="Make room, or set XDG_STATE_HOME (for another host `state:` in the spec) to a folder that has some.",
        )


def _ports_stand_open(topology: ClusterTopology) -> Iterator[ClusterError]:
    """Why the servers' ports could not be closed to all but the cluster's hosts, where that is wanted."""
    if topology.network != "closed":
        return
    try:
        check_support(addresses_of(topology.hosts))
    except PortIsolationError as error:
        yield ClusterError(str(error), hint=OPEN_HINT)
    except OSError as error:
        yield ClusterError(str(error), hint="Write an IP address to `address:`, or make the name known there.")


def _lack_of_grpc() -> Iterator[ClusterError]:
    if find_spec("grpc") is None:
        yield ClusterError(
            f"{sys.executable} has no gRPC, by which servers are asked whether they answer",
            hint=f"Type `{sys.executable} -m pip install grpcio`.",
        )
