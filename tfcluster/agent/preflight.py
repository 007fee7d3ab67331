"""Preflight checks: whether this host can start a topology's tasks; allocates the ports and GPUs that are not set.

An agent runs them for `up` and `scale`, their dry runs, and `doctor`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tfcluster import settings
from tfcluster.agent import meters
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.subprocesses import ChildTimeoutError, fork_child, run_in_child
from tfcluster.core.devices import find_gpu_problem, visible_gpus
from tfcluster.core.forwarding import needs_forwarders
from tfcluster.core.hosts import OtherAccounts
from tfcluster.core.text import pluralize
from tfcluster.core.topology import PRIVATE, ClusterTopology, Task
from tfcluster.errors import ClusterError
from tfcluster.os.cpu_quota import read_cpu_quota
from tfcluster.os.daemonize import detach
from tfcluster.os.process_handle import supports_pidfds
from tfcluster.private_network import find_obstacle
from tfcluster.processes.connection_check import answer_connections, check_connections
from tfcluster.processes.gpus import list_gpus
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.processes.servers.port_isolation import (
    PortIsolationError,
    addresses_of,
    check_program_support,
    check_support,
)
from tfcluster.protocol.api.cluster import Allocation, FailedCheck, Preparation, ReachReply, ReachRequest
from tfcluster.protocol.serialization import decode, to_json
from tfcluster.tf_install import missing_packages

_NOBODY_UID = 65534
_FIRST_UID = 1000  # of people's accounts, in all common distributions
_NO_SHELLS = frozenset({"nologin", "false", "true", "sync", "halt", "shutdown"})  # programs that refuse a login


def gpu_ids(environment: Mapping[str, str] = os.environ) -> list[str]:
    """List the GPUs that tasks may use, in the notation of CUDA_VISIBLE_DEVICES; none if there is no driver.

    If CUDA_VISIBLE_DEVICES is set in the environment, only the GPUs that it allows are listed. Otherwise all
    GPUs of the driver are listed by their index in PCI bus order.
    """
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    return [index for index, _ in list_gpus()] if allowed is None else visible_gpus(allowed)


def other_accounts() -> OtherAccounts | None:
    """Find the other login accounts of this host; None if there are none.

    Reads /etc/passwd as a file: the C library's functions may query a directory server, which can take minutes.
    """
    try:
        passwd = Path("/etc/passwd").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    uid = os.getuid()
    user, names = login_accounts(passwd, uid)
    return OtherAccounts(user or f"uid {uid}", len(names), tuple(names[: settings.LISTED_EXAMPLES])) if names else None


def login_accounts(passwd: str, uid: int) -> tuple[str, list[str]]:
    """Return the name of a user, empty if unknown, and the other accounts of people that have a login shell.

    `passwd` is the content of /etc/passwd. Lines such as a comment or the `+` of NIS are not accounts.
    """
    user, names = "", []
    for name, _, number, _, _, _, shell in (line.split(":") for line in passwd.splitlines() if line.count(":") == 6):
        if not name or not number.isdecimal():
            continue
        if int(number) == uid:
            user = user or name
        elif _FIRST_UID <= int(number) != _NOBODY_UID and Path(shell.strip()).name not in _NO_SHELLS:
            names.append(name)
    return user, names


@dataclass(frozen=True)
class HostCheckInput:
    """A topology that this host is checked for, and what the host has for it."""

    topology: ClusterTopology  # tasks that already have GPUs keep them
    host: str
    folder: Path  # the directory for the cluster's state
    ports: PortAllocator
    gpus: Sequence[str]
    own_ports: Collection[int] = ()  # the ports of the running cluster, which its own tasks use
    tls_ports: PortAllocator = field(default_factory=PortAllocator)  # reserves the port of the forwarder
    own_tls_port: int | None = None  # the port that the running cluster's own forwarder uses

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks on this host."""
        return self.topology.on(self.host)

    @property
    def lacks_tls_port(self) -> bool:
        """Return whether this host gets a forwarder for which no port is chosen."""
        return needs_forwarders(self.topology) and self.named_tls_port is None

    @property
    def named_tls_port(self) -> int | None:
        """Return the port of this host's forwarder, if the topology names one."""
        return next((host.tls_port for host in self.topology.hosts if host.name == self.host), None)


def prepare_host(
    inputs: HostCheckInput, load_tensorflow: Callable[[], TensorFlow], failed_checks: Sequence[FailedCheck]
) -> Preparation:
    """Run all checks for a topology, allocate ports and GPUs, and load TensorFlow's library; see `run_checks`.

    A host that has none of the cluster's servers does not load it: that takes half of an agent's memory.
    """
    allocation, failures = run_checks(inputs, failed_checks)
    version = None
    try:
        if inputs.tasks or not inputs.topology.has_servers:
            version = load_tensorflow().version
    except ClusterError as error:
        failures.append(FailedCheck("tensorflow", error))
    measured = (sys.executable, meters.find_obstacle(), len(os.sched_getaffinity(0)), read_cpu_quota())
    return Preparation(version, allocation, tuple(failures), other_accounts(), *measured)


def run_checks(inputs: HostCheckInput, failed_checks: Sequence[FailedCheck]) -> tuple[Allocation, list[FailedCheck]]:
    """Check the ports of a topology, and allocate ports and GPUs for the tasks on this host if no check has failed.

    Reserves every port that the topology names for this host, allocates the ports that it leaves out, and assigns GPUs.
    `failed_checks` is the result of `check_host`.

    Returns:
        The allocation, and all failures. If one keeps the host from starting its tasks, the allocation is empty and no
        additional port is reserved.
    """
    ports, ports_before = inputs.ports, inputs.ports.reserved
    failures = [FailedCheck("ports", error) for error in check_ports(inputs)]
    failures += failed_checks
    if all(failure.is_warning for failure in failures):
        try:
            return _allocate(inputs), failures
        except ClusterError as error:
            failures.append(FailedCheck("ports", error))
    # Keep the ports that were reserved before: other commands may be about to use them.
    ports.release_except({*ports_before, *inputs.own_ports})
    return Allocation({}, {}), failures


def check_host(inputs: HostCheckInput) -> list[FailedCheck]:
    """Run all `HOST_CHECKS` for a topology, and return the failures."""
    if failures := check_kernel(inputs):
        return failures
    failures = [FailedCheck(name, error) for name, check in HOST_CHECKS.items() for error in check(inputs)]
    if not any(failure.check == "isolation" for failure in failures):
        failures += check_program_ports(inputs)
    return failures


async def check_host_in_child(inputs: HostCheckInput) -> list[FailedCheck]:
    """Run all `HOST_CHECKS` in a child process: looking up names takes long if a name server does not answer."""
    if failures_of_kernel := check_kernel(inputs):  # no child process could be watched
        return failures_of_kernel
    limit = settings.HOST_CHECKS_SECONDS
    try:
        failures = await run_in_child("tfcluster: host check", lambda: to_json(check_host(inputs)), limit)
    except ChildTimeoutError as problem:
        hint = "A name server might not answer there: set `address:` to IP addresses, or try again."
        return [
            FailedCheck("addresses", ClusterError(f"{inputs.host} cannot be checked: {problem.message}", hint=hint))
        ]
    except ClusterError as problem:
        error = ClusterError(f"{inputs.host} cannot be checked: {problem.message}", hint=problem.hint)
        return [FailedCheck("isolation", error)]
    return [decode(FailedCheck, failure) for failure in failures]


def _allocate(inputs: HostCheckInput) -> Allocation:
    topology = inputs.topology
    places = [task for task in (*topology.tasks, *topology.reserved) if task.host == inputs.host]
    without_port = [task for task in places if task.port is None]
    ports = zip(without_port, inputs.ports.allocate(len(without_port), inputs.own_ports), strict=True)
    used_gpus = {gpu for task in inputs.tasks for gpu in task.gpu_ids}
    free_gpus = (gpu for gpu in inputs.gpus if gpu not in used_gpus)
    return Allocation(
        {task.name: port for task, port in ports},
        {task.name: tuple(islice(free_gpus, task.gpus)) for task in inputs.tasks if task.gpus and not task.gpu_ids},
        next(inputs.tls_ports.allocate(1)) if inputs.lacks_tls_port else None,
    )


def reserve_ports(inputs: HostCheckInput) -> None:
    """Reserve every port of a topology on this host; all of them are allocated already.

    Raises ClusterError if another process has taken one in the meantime; no additional port is reserved then.
    """
    ports_before = inputs.ports.reserved
    if errors := list(check_ports(inputs)):
        inputs.ports.release_except({*ports_before, *inputs.own_ports})
        message = "\n".join(error.message for error in errors)
        raise ClusterError(message, hint="Nothing was changed. Run the command again: it makes a new plan.")


def check_ports(inputs: HostCheckInput) -> Iterator[ClusterError]:
    """Reserve the ports that the topology names for this host, and yield an error for each that cannot be reserved."""
    hint = "Stop that process, set another port for the task in the spec, or leave the port out."
    for task in (*inputs.topology.tasks, *inputs.topology.reserved):
        is_needed = task.host == inputs.host and task.port not in inputs.own_ports
        if is_needed and task.port and (reason := _reserve(task.short, task.port, inputs.ports)):
            yield ClusterError(reason, hint=hint)
    port = inputs.named_tls_port if needs_forwarders(inputs.topology) else None
    if port and port != inputs.own_tls_port and (reason := _reserve("tls_port", port, inputs.tls_ports)):
        yield ClusterError(reason, hint="Stop that process, or set another `tls_port:` for the host in the spec.")


def _reserve(short: str, port: int, ports: PortAllocator) -> str | None:
    """Reserve a port for a task; return why it cannot be reserved, or None if it is."""
    try:
        if ports.reserve(port):
            return None
    except OSError as error:
        return f"{short}: port {port} cannot be used: {error.strerror}"
    return f"{short}: port {port} is taken by {ports.owner(port)}"


def check_kernel(inputs: HostCheckInput) -> list[FailedCheck]:
    """Return the failure of a host on which tfcluster does not run, so that no other check is of use."""
    if supports_pidfds():
        return []
    error = ClusterError(
        f"Linux 5.4 is required: {inputs.host} (Linux {os.uname().release}) has no pidfd_open(), or the seccomp filter "
        "of a container forbids it",
        hint="Use a newer kernel or, for a container, a newer runtime or `--security-opt seccomp=unconfined`.",
    )
    return [FailedCheck("kernel", error)]


def check_addresses(inputs: HostCheckInput) -> Iterator[ClusterError]:
    """Yield an error for each task address of this host that does not belong to this machine."""
    for address in dict.fromkeys(task.address_host for task in inputs.tasks):
        tasks = ", ".join(task.short for task in inputs.tasks if task.address_host == address)
        if reason := _why_not_local(address):
            yield ClusterError(f"{tasks}: {address} is not an address of {inputs.host}: {reason}", hint=_own_address())


def _own_address() -> str:
    """Return a hint that says which address to use for this host.

    Prefers the address through which ssh reached the host when it started this agent.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4:
        return f"ssh has reached it at {words[2]}: set `address: {words[2]}`."
    return "Set `address:` to an address that `ip address` shows there, or to a name that resolves to one."


def _why_not_local(address: str) -> str | None:
    """Return why no socket of this machine can bind an address or host name; None if one can.

    One of the addresses to which a host name resolves is enough.
    """
    reason = None
    try:
        for family, kind, protocol, _, resolved in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.bind(resolved)
                return None
            except OSError as error:  # for example an IPv6 address on a kernel without IPv6
                reason = error.strerror
    except OSError as error:
        return error.strerror
    return reason


def check_gpus(inputs: HostCheckInput) -> Iterator[ClusterError]:
    """Yield an error if the tasks request more GPUs than this host has, or are given GPUs that it does not have."""
    needed, given = sum(task.gpus for task in inputs.tasks), dict[str, list[str]]()
    for task in inputs.tasks:
        if "CUDA_VISIBLE_DEVICES" in task.variables and "CUDA_VISIBLE_DEVICES" not in task.secrets:
            given.setdefault(task.variables["CUDA_VISIBLE_DEVICES"], []).append(task.short)
    if not needed and not given:
        return  # NVML is not asked: it can take seconds
    present = list_gpus()
    for value, tasks in given.items():
        if problem := find_gpu_problem(visible_gpus(value), present):
            message = f"env of {', '.join(tasks)}: CUDA_VISIBLE_DEVICES={value} {problem}"
            yield ClusterError(
                message, hint="Correct it in the spec, or leave it out: `gpus: N` gives a task its GPUs."
            )
    if needed and (problem := find_gpu_problem(inputs.gpus, present)):
        yield ClusterError(
            f"environment of {inputs.host}: CUDA_VISIBLE_DEVICES={','.join(inputs.gpus)} {problem}",
            hint="Correct it or unset it. A cluster that is up keeps its environment until `tfcluster down`.",
        )
    elif needed > len(inputs.gpus):
        requests = ", ".join(f"{task.short} {task.gpus}" for task in inputs.tasks if task.gpus)
        has = f"{inputs.host} has {len(present) or 'no GPU'}"
        if len(inputs.gpus) < len(present):
            has += f", of which CUDA_VISIBLE_DEVICES allows {len(inputs.gpus)}"
        yield ClusterError(
            f"the tasks require {pluralize(needed, 'GPU')} ({requests}), but {has}",
            hint="Lower `gpus:` in the spec; `cpus: N` gives a task several CPU devices instead.",
        )


def check_disk(inputs: HostCheckInput) -> Iterator[ClusterError]:
    """Yield an error if the disk with the state directory is nearly full."""
    try:
        disk = os.statvfs(inputs.folder)
    except OSError:  # the directory was just deleted; it is recreated before anything is written
        return
    free = disk.f_bavail * disk.f_frsize
    has_inodes = disk.f_favail > 0 or disk.f_files == 0  # some file systems do not count them
    if free < settings.MIN_FREE_DISK_BYTES or not has_inodes:
        problem = f"only {free // 2**20} MiB are free there" if has_inodes else "the disk has no inode left for a file"
        yield ClusterError(
            f"{inputs.folder}: {problem}; the journal and the logs need {settings.MIN_FREE_DISK_BYTES // 2**20} MiB",
            hint="Make room, or set XDG_STATE_HOME (for another host `state:` in the spec) to a folder that has some.",
        )


def check_packages(inputs: HostCheckInput) -> Iterator[ClusterError]:
    """Yield an error for each package that is missing besides TensorFlow, which has its own check."""
    missing = {package: message for package, message in missing_packages().items() if package != "tensorflow"}
    for message in missing.values():
        yield ClusterError(message, hint=f"Type `{sys.executable} -m pip install {' '.join(missing)}`.")


def check_port_isolation(inputs: HostCheckInput) -> Iterator[ClusterError]:
    """Check that this host can restrict the servers' ports, or make a private network, if the spec asks for it.

    Yields an error if it cannot (the machine does not support or allow it, or a host's address is unknown).
    """
    if inputs.topology.network == PRIVATE and (problem := find_obstacle()) is not None:
        yield problem
    if not inputs.topology.closes_ports:
        return
    try:
        check_support(addresses_of(inputs.topology.hosts))
    except PortIsolationError as error:
        yield error
    except OSError as error:
        yield ClusterError(str(error), hint="Set `address:` to an IP address, or make the name resolvable there.")


def check_program_ports(inputs: HostCheckInput) -> list[FailedCheck]:
    """Return the warning that programs of runs cannot listen on this host, although tasks can."""
    try:
        if inputs.topology.closes_ports:
            check_program_support(addresses_of(inputs.topology.hosts))
    except PortIsolationError as error:
        message = f"scripts and members of `launch` cannot listen: {error.message}"
        return [FailedCheck("programs", ClusterError(message, hint=error.hint), is_warning=True)]
    except OSError as error:  # no process can be forked now, or a name cannot be looked up any more
        message = f"whether scripts and members of `launch` can listen could not be checked: {error}"
        return [FailedCheck("programs", ClusterError(message, hint="Type the command again."), is_warning=True)]
    return []


#: What is checked on a host before anything starts, besides its ports, by name; each check yields what prevents the
#: start. The checks change nothing: an agent runs them in a child process.
HOST_CHECKS: dict[str, Callable[[HostCheckInput], Iterator[ClusterError]]] = {
    "addresses": check_addresses,  # needs every address of the host's tasks to be one of its own
    "gpus": check_gpus,  # needs as many GPUs as the tasks request
    "disk": check_disk,  # needs room for the journal and the logs
    "packages": check_packages,  # needs what is imported later: the agent itself has started without
    "isolation": check_port_isolation,  # needs a kernel that can do what `network:` says
}


async def reach(request: ReachRequest) -> ReachReply:
    """Connect to other hosts in a child process, because a name is looked up in a thread, which the agent cannot have.

    Raises what `run_in_child` raises.
    """
    limit = request.limit + settings.CONNECTIVITY_MARGIN_SECONDS
    reply = await run_in_child("tfcluster: connection check", lambda: to_json(check_connections(request)), limit)
    return decode(ReachReply, reply)


@contextmanager
def answering(listeners: Sequence[socket.socket], topology: ClusterTopology) -> Iterator[None]:
    """Have a child process answer the connections of other hosts that are checked for a topology.

    Raises ClusterError: it cannot be forked.
    """
    agent_pid, keep = os.getpid(), [each.fileno() for each in listeners]

    def body(agent: socket.socket) -> None:
        detach("tfcluster: connection check", keep=keep, parent=agent_pid)
        _answer(listeners, topology)

    try:
        child = fork_child(body, lambda status: None, keep=keep)
    except OSError as error:
        message = f"no process can be started that answers other hosts: {error.strerror}"
        raise ClusterError(message, hint="`ulimit -u`, the cgroup or the memory allows no more.") from error
    try:
        yield
    finally:
        child.kill()
        child.wait()  # it has the sockets, so their ports stay taken until it has exited
        child.close_pipe()


def _answer(listeners: Sequence[socket.socket], topology: ClusterTopology) -> None:
    """Answer connections; those of an address that is neither the cluster's nor this machine's are not admitted."""
    with suppress(OSError):  # if an address is unknown, the host is not checked further
        known = addresses_of(topology.hosts) if topology.closes_ports else None
        answer_connections(
            listeners, lambda address: known is None or address in known or _why_not_local(str(address)) is None
        )
