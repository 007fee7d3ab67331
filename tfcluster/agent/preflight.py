"""Preflight checks: whether this host can start a topology's tasks; allocates the ports and GPUs that are not set."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.ports import PortAllocator, port_owner
from tfcluster.core.text import pluralize
from tfcluster.core.topology import ClusterTopology, Task
from tfcluster.errors import ClusterError
from tfcluster.processes.listen_guard import check_support
from tfcluster.processes.netinfo import addresses_of
from tfcluster.processes.port_isolation import OPEN_HINT, PortIsolationError
from tfcluster.protocol.api.cluster import Allocation


def examine(
    topology: ClusterTopology,
    host: str,
    folder: Path,
    ports: PortAllocator,
    gpus: Sequence[str],
    ours: Collection[int] = (),
) -> tuple[Allocation, list[ClusterError]]:
    """Run the preflight checks for a topology, and allocate ports and GPUs for the tasks on this host.

    Holds every port that the topology names for this host, allocates the ports that it leaves out, and assigns GPUs.

    Args:
        topology: The cluster; tasks that already have GPUs keep them.
        host: The cluster's name for this host.
        folder: The directory for the cluster's state.
        ports: The allocator that holds the ports.
        gpus: The host's GPUs.
        ours: The ports of the running cluster, which its own tasks use.

    Returns:
        The allocation, and all errors that keep the host from starting its tasks. If there are any errors, the
        allocation is empty and no additional port is held.
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
    ports.keep_only({*before, *ours})  # keep the ports that were held before: other commands may be about to use them
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
        {task.name: tuple(islice(left, task.gpus)) for task in tasks if task.gpus and not task.gpu_ids},
    )


def hold_ports(topology: ClusterTopology, host: str, ports: PortAllocator, ours: Collection[int]) -> None:
    """Hold every port of a topology on this host; all of them are allocated already.

    Args:
        topology: The topology.
        host: The cluster's name for this host.
        ports: The allocator that holds the ports.
        ours: The ports of the running cluster, which are not held again.

    Raises:
        ClusterError: Another process has taken a port in the meantime; no additional port is held.
    """
    before = ports.held
    if problems := _taken_ports(topology, host, ports, ours):
        ports.keep_only({*before, *ours})
        told = "\n".join(problem.message for problem in problems)
        raise ClusterError(told, hint="Nothing was changed. Run the command again: it makes a new plan.")


def _taken_ports(
    topology: ClusterTopology, host: str, ports: PortAllocator, ours: Collection[int]
) -> list[ClusterError]:
    """Hold the ports that the topology names for this host.

    Returns:
        An error for each port that cannot be held.
    """
    hint = "Stop that process, or give the task another port in the spec, or leave the port out."
    return [
        ClusterError(problem, hint=hint)
        for task in (*topology.tasks, *topology.reserved)
        if task.host == host and task.port and task.port not in ours
        if (problem := _hold(task.short, task.port, ports))
    ]


def _hold(short: str, port: int, ports: PortAllocator) -> str | None:
    """Hold a port.

    Args:
        short: The short name of the task that needs the port.
        port: The port.
        ports: The allocator that holds the port.

    Returns:
        Why the port cannot be held; None if it is held.
    """
    try:
        if ports.hold(port):
            return None
    except OSError as error:
        return f"{short}: port {port} cannot be used: {error.strerror}"
    return f"{short}: port {port} is taken by {port_owner(port)}"


def _foreign_addresses(tasks: Sequence[Task], host: str) -> Iterator[ClusterError]:
    """Yield an error for each task address of this host that does not belong to this machine."""
    for address in dict.fromkeys(task.address_host for task in tasks):
        askers = ", ".join(task.short for task in tasks if task.address_host == address)
        if why := _why_not_ours(address):
            yield ClusterError(
                f"{askers}: {address} is not an address of {host}: {why}",
                hint=_own_address(),
            )


def _own_address() -> str:
    """Return a hint that says which address to use for this host.

    Prefers the address through which ssh reached the host when it started this agent.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4:
        return f"ssh has reached it at {words[2]}: `address: {words[2]}`."
    return "Name an address that `ip address` shows there, or a name that leads to one."


def _why_not_ours(address: str) -> str | None:
    """Check that a socket of this machine can bind an address or one of the addresses to which a host name resolves.

    Args:
        address: The IP address or host name.

    Returns:
        Why no socket can bind any of them; None if a socket can.
    """
    why = None
    try:
        for family, kind, protocol, _, found in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.bind(found)
                return None
            except OSError as error:  # for example an IPv6 address on a kernel without IPv6
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
    except OSError:  # the directory was just deleted; it is recreated before anything is written
        return
    free = found.f_bavail * found.f_frsize
    if free < settings.MIN_FREE_DISK_BYTES or (found.f_files and not found.f_favail):
        yield ClusterError(
            f"{folder}: {free // 2**20} MiB and {found.f_favail} files are free there, for the journal and the logs it "
            f"takes {settings.MIN_FREE_DISK_BYTES // 2**20} MiB",
            hint="Make room, or set XDG_STATE_HOME (for another host `state:` in the spec) to a folder that has some.",
        )


def _ports_stand_open(topology: ClusterTopology) -> Iterator[ClusterError]:
    """Check that this host can restrict the servers' ports to the cluster's hosts, if the spec asks for it.

    Yields:
        An error if it cannot (port isolation is not supported, or a host's address is unknown).
    """
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
