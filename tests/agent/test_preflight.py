"""The preflight checks of a host: named ports are reserved or reported, missing ports and GPUs are allocated."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_ports import may_bind
from tests.descriptors import free_descriptors
from tfcluster import settings, tf_install
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.preflight import (
    HostCheckInput,
    check_host,
    check_host_in_child,
    gpu_ids,
    login_accounts,
    reserve_ports,
    run_checks,
)
from tfcluster.core.hosts import Host
from tfcluster.core.resolve import resolve_spec
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.os import bpf, libc
from tfcluster.processes import gpus
from tfcluster.protocol.api.cluster import Allocation, FailedCheck
from tfcluster.protocol.serialization import to_json
from tfcluster.spec.load import parse_spec


def check(inputs: HostCheckInput) -> tuple[Allocation, list[FailedCheck]]:
    return run_checks(inputs, check_host(inputs))


def allocation_of(
    topology: ClusterTopology, ports: PortAllocator, gpus: Sequence[str], own_ports: Collection[int] = ()
) -> Allocation:
    """What a host chooses that nothing keeps from it."""
    allocation, failures = check(HostCheckInput(topology, "localhost", Path("/"), ports, gpus, own_ports))
    assert not failures
    return allocation


def problems_of(
    topology: ClusterTopology, ports: PortAllocator, gpus: Sequence[str], host: str = "localhost"
) -> list[ClusterError]:
    return [failure.error for failure in failures_of(topology, ports, gpus, host)]


def failures_of(
    topology: ClusterTopology, ports: PortAllocator, gpus: Sequence[str], host: str = "localhost"
) -> list[FailedCheck]:
    allocation, failures = check(HostCheckInput(topology, host, Path("/"), ports, gpus))
    assert allocation == Allocation({}, {})
    assert not ports.reserved, "no port is held for a cluster that cannot start"
    return failures


def elsewhere(topology: ClusterTopology, host: str, address: str) -> ClusterTopology:
    """The topology with all tasks on another host."""
    tasks = tuple(replace(task, host=host, address_host=address) for task in topology.tasks)
    return replace(topology, tasks=tasks)


def topology_of(jobs: str) -> ClusterTopology:
    return resolve_spec(parse_spec(f"jobs: {{{jobs}}}", "c", "c"), "c")


class Nvml:
    """NVIDIA's management library with a number of GPUs, whose UUIDs are GPU-0f, GPU-1f and so on."""

    def __init__(self, count: int, init: int = 0, get: int = 0) -> None:
        self.calls: list[str] = []
        self.nvmlInit_v2 = self._answering("init", init)
        self.nvmlShutdown = self._answering("shutdown", 0)
        self._get, self._count = self._answering("count", get), count

    def _answering(self, name: str, code: int) -> Callable[[], int]:
        def call() -> int:
            self.calls.append(name)
            return code

        return call

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self._count
        return self._get()

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, device: Any) -> int:
        device._obj.value = number + 1
        return 0

    def nvmlDeviceGetUUID(self, device: ctypes.c_void_p, uuid: Any, size: int) -> int:
        uuid.value = f"GPU-{(device.value or 0) - 1}f".encode()
        return 0


@pytest.fixture(autouse=True)
def play_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[Nvml], None]:
    """Play a library of NVIDIA's, for all tests one with nine GPUs; return the function that plays another one."""

    def play(nvml: Nvml) -> None:
        monkeypatch.setattr(
            ctypes, "CDLL", lambda name, **options: nvml if name == gpus._NVML else LIBRARY(name, **options)
        )

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    play(Nvml(9))
    return play


LIBRARY = ctypes.CDLL


@pytest.fixture
def taken() -> Iterator[list[int]]:
    """Two ports that this process listens on."""
    with ExitStack() as stack:
        port_numbers = []
        for _ in range(2):
            listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            port_numbers.append(listener.getsockname()[1])
        yield port_numbers


def test_missing_ports_are_allocated_by_task_and_reserved(
    ports: PortAllocator, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Counting up begins at the very port that a later task names.
    monkeypatch.setattr(settings, "FIRST_PORT", port)
    monkeypatch.setattr(settings, "LAST_PORT", 65535)
    topology = topology_of(f"ps: {{tasks: 1}}, worker: [localhost, 'localhost:{port}', localhost]")
    chosen = allocation_of(topology, ports, []).ports
    assert list(chosen) == ["/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:2"]
    assert port not in chosen.values()
    assert len(set(chosen.values())) == 3
    assert not any(map(may_bind, [port, *chosen.values()]))


def test_a_port_that_cannot_be_used_is_reported_with_the_reason(
    ports: PortAllocator, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.socket.bind

    def refuse(self: socket.socket, address: Any) -> None:
        if address[1] == port:
            raise PermissionError(13, "Permission denied")
        real(self, address)

    monkeypatch.setattr(socket.socket, "bind", refuse)
    (problem,) = problems_of(topology_of(f"ps: ['localhost:{port}']"), ports, [])
    assert problem.message == f"ps:0: port {port} cannot be used: Permission denied"


def test_too_few_descriptors_are_reported_and_no_port_is_kept(ports: PortAllocator) -> None:
    inputs = HostCheckInput(topology_of("worker: {tasks: 30}"), "localhost", Path("/"), ports, ())
    with free_descriptors(12):
        allocation, [failure] = run_checks(inputs, [])
    assert (allocation, failure.check) == (Allocation({}, {}), "ports")
    assert failure.error.message == "no further port can be reserved: Too many open files"
    assert "`ulimit -Hn`" in failure.error.hint
    assert not ports.reserved


def test_each_gpu_is_assigned_once_to_tasks_that_request_gpus(ports: PortAllocator) -> None:
    topology = topology_of("ps: {tasks: 1}, worker: {tasks: 2, gpus: 2}, chief: {tasks: 1, gpus: 1}")
    assert allocation_of(topology, ports, ["3", "1", "GPU-5f", "0", "7", "8"]).gpus == {
        "/job:worker/task:0": ("3", "1"),
        "/job:worker/task:1": ("GPU-5f", "0"),
        "/job:chief/task:0": ("7",),
    }
    topology = topology_of("worker: {tasks: 3, gpus: 1}").with_allocation({}, {"/job:worker/task:1": ("0",)})
    assert allocation_of(topology, ports, ["0", "1", "2"]).gpus == {
        "/job:worker/task:0": ("1",),
        "/job:worker/task:2": ("2",),
    }


def test_all_failures_are_reported_at_once_with_their_checks(
    ports: PortAllocator, taken: list[int], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "MIN_FREE_DISK_BYTES", 1 << 62)
    monkeypatch.setitem(tf_install.PACKAGES_OF_TENSORFLOW, "absent", "absent-package")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    one, two = taken
    ps = f"ps: ['localhost:{one}', 'localhost:{port}', 'localhost:{two}']"
    topology = topology_of(f"{ps}, worker: {{tasks: 2, gpus: 2}}, chief: {{tasks: 1, gpus: 1}}")
    topology = elsewhere(topology, "gamma", "192.0.2.1")
    failures = failures_of(topology, ports, ["0", "1", "2", "3"], "gamma")
    assert [failure.check for failure in failures] == ["ports", "ports", "addresses", "gpus", "disk", "packages"]
    first, second, address, gpus, space, package = (failure.error for failure in failures)
    assert first.message.startswith(f"ps:0: port {one} is taken by process {os.getpid()} (")
    assert "Stop that process" in first.hint
    assert second.message.startswith(f"ps:2: port {two} is taken by process {os.getpid()} (")
    tasks = "ps:0, ps:1, ps:2, worker:0, worker:1, chief:0"
    assert address.message.startswith(f"{tasks}: 192.0.2.1 is not an address of gamma: ")
    assert "`ip address`" in address.hint
    assert gpus.message == (
        "the tasks require 5 GPUs (worker:0 2, worker:1 2, chief:0 1), but gamma has 9, "
        "of which CUDA_VISIBLE_DEVICES allows 4"
    )
    assert gpus.hint == "Lower `gpus:` in the spec; `cpus: N` gives a task several CPU devices instead."
    assert space.message.startswith("/: ")
    assert " MiB are free there; the journal" in space.message
    assert package.message == f"absent-package is not installed for {sys.executable}"
    assert package.hint == f"Type `{sys.executable} -m pip install absent-package`."
    assert space.hint


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.8.9.10"])
def test_an_address_of_this_machine_is_accepted(ports: PortAllocator, address: str) -> None:
    topology = elsewhere(topology_of("worker: {tasks: 1}"), "gamma", address)
    assert check(HostCheckInput(topology, "gamma", Path("/"), ports, []))[1] == []


def test_the_hint_names_the_address_that_ssh_used(ports: PortAllocator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 51234 10.0.0.7 22")
    topology = elsewhere(topology_of("worker: {tasks: 1}"), "gamma", "192.0.2.1")
    (problem,) = problems_of(topology, ports, [], "gamma")
    assert problem.hint == "ssh has reached it at 10.0.0.7: set `address: 10.0.0.7`."


def refuse(*arguments: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def apart(topology: ClusterTopology) -> ClusterTopology:
    """The topology with a second host, on another machine."""
    return replace(topology, hosts=(*topology.hosts, Host("beta", "192.0.2.2")))


@pytest.mark.parametrize("uid", [0, 65534])
def test_missing_port_isolation_is_reported(ports: PortAllocator, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(bpf, "attach_filter", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    topology = topology_of("worker: {tasks: 1}")
    (problem,) = problems_of(apart(topology), ports, [])
    assert "CAP_NET_ADMIN choose who connects to the servers' ports" in problem.message
    assert "`network: open`" in problem.hint
    assert "`--cap-add NET_ADMIN`" in problem.hint
    assert ("works as root" in problem.hint) == (uid != 0)
    assert check(HostCheckInput(topology, "localhost", Path("/"), ports, []))[1] == [], "only local peers"
    assert check(HostCheckInput(replace(apart(topology), network="open"), "localhost", Path("/"), ports, []))[1] == []


def test_programs_that_cannot_listen_are_a_warning(ports: PortAllocator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "pidfd_getfd", refuse)
    topology = topology_of("worker: {tasks: 1}")
    inputs = HostCheckInput(topology, "localhost", Path("/"), ports, [])
    allocation, (failure,) = check(inputs)
    assert failure.is_warning
    assert failure.check == "programs"
    assert failure.error.message.startswith("scripts and members of `launch` cannot listen: ")
    assert "SYS_PTRACE" in failure.error.hint
    assert allocation.ports
    assert check(replace(inputs, topology=replace(topology, network="open")))[1] == []


async def test_a_kernel_without_pidfds_is_the_only_failure(
    ports: PortAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libc, "pidfd_open", refuse)
    inputs = HostCheckInput(apart(topology_of("worker: {tasks: 1, gpus: 9}")), "localhost", Path("/"), ports, [])
    (failure,) = check_host(inputs)
    assert (failure.check, failure.is_warning) == ("kernel", False)
    assert failure.error.message.startswith("Linux 5.4 is required: localhost (Linux ")
    assert to_json(await check_host_in_child(inputs)) == to_json([failure])


def test_a_host_with_an_unknown_address_is_reported(ports: PortAllocator) -> None:
    topology = apart(topology_of("worker: {tasks: 1}"))
    topology = replace(topology, hosts=(*topology.hosts, Host("gamma", "x" * 64)))  # no label of a name is so long
    (problem,) = problems_of(topology, ports, [])
    assert problem.message.startswith("host gamma: its address ")
    assert "`address:`" in problem.hint


def test_a_name_that_does_not_resolve_is_reported(ports: PortAllocator, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*arguments: object, **named: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    topology = elsewhere(topology_of("worker: {tasks: 1}"), "gamma", "nowhere")
    (problem,) = problems_of(topology, ports, [], "gamma")
    assert problem.message == "worker:0: nowhere is not an address of gamma: Name or service not known"


async def test_a_name_server_that_does_not_answer_does_not_block_the_agent(
    ports: PortAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **named: time.sleep(600))
    monkeypatch.setattr(settings, "HOST_CHECKS_SECONDS", 0.5)
    topology = elsewhere(topology_of("worker: {tasks: 1}"), "gamma", "nowhere")

    checking = asyncio.ensure_future(check_host_in_child(HostCheckInput(topology, "gamma", Path("/"), ports, [])))
    turns = 0
    while not checking.done():
        await asyncio.sleep(0.01)
        turns += 1
    (error,) = (failure.error for failure in checking.result())
    assert error.message == "gamma cannot be checked: the process 'tfcluster: host check' took longer than 0.5 s"
    assert "name server" in error.hint
    assert turns > 5


async def test_a_child_process_returns_the_same_failures(ports: PortAllocator) -> None:
    topology = elsewhere(topology_of("worker: {tasks: 1, gpus: 1}"), "gamma", "192.0.2.1")
    candidate = HostCheckInput(topology, "gamma", Path("/"), ports, [])
    failures = await check_host_in_child(candidate)
    assert [failure.check for failure in failures] == ["addresses", "gpus"]
    assert [to_json(failure) for failure in failures] == [to_json(failure) for failure in check_host(candidate)]


def test_tasks_of_other_hosts_are_not_checked(ports: PortAllocator, taken: list[int]) -> None:
    topology = topology_of(f"ps: ['localhost:{taken[0]}'], worker: {{tasks: 1, gpus: 1, max: 3}}")
    moved = tuple(replace(task, host="gamma") if task.job == "worker" else task for task in topology.tasks)
    reserved = tuple(replace(task, host="gamma" if task.index == 1 else "delta") for task in topology.reserved)
    topology = replace(topology, tasks=moved, reserved=reserved)
    allocation, problems = check(HostCheckInput(topology, "gamma", Path("/"), ports, ["0"]))
    assert problems == []
    assert list(allocation.ports) == ["/job:worker/task:0", "/job:worker/task:1"]
    assert allocation.gpus == {"/job:worker/task:0": ("0",)}
    reserve_ports(HostCheckInput(topology, "gamma", Path("/"), ports, ()))
    assert ports.reserved == set(allocation.ports.values())
    assert check(HostCheckInput(topology, "nowhere", Path("/"), ports, [])) == (Allocation({}, {}), [])


def test_the_ports_of_the_running_cluster_are_neither_checked_nor_allocated(
    ports: PortAllocator, taken: list[int], monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setattr(settings, "FIRST_PORT", port)
    monkeypatch.setattr(settings, "LAST_PORT", 65535)
    topology = topology_of(f"worker: ['localhost:{taken[0]}', localhost]")
    chosen = allocation_of(topology, ports, [], own_ports={taken[0], port}).ports
    assert list(chosen) == ["/job:worker/task:1"]
    assert port not in chosen.values()


def test_reserve_ports_reserves_all_or_none(ports: PortAllocator, taken: list[int], port: int) -> None:
    topology = topology_of(f"worker: ['localhost:{port}', 'localhost:{taken[0]}']")
    with pytest.raises(ClusterError) as caught:
        reserve_ports(HostCheckInput(topology, "localhost", Path("/"), ports, ()))
    assert caught.value.message.startswith(f"worker:1: port {taken[0]} is taken by process {os.getpid()} (")
    assert caught.value.hint == "Nothing was changed. Run the command again: it makes a new plan."
    assert not ports.reserved
    reserve_ports(HostCheckInput(topology, "localhost", Path("/"), ports, (), {taken[0]}))
    assert ports.reserved == {port}


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ("0,1", ["0", "1"]),
        ("3, GPU-5f ,0", ["3", "GPU-5f", "0"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("0,,1", ["0"]),
        ("NoDevFiles", ["NoDevFiles"]),
    ],
)
def test_visible_devices_of_the_agent_limit_the_gpus(
    monkeypatch: pytest.MonkeyPatch, allowed: str, expected: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert gpu_ids() == expected


@pytest.mark.parametrize(
    ("nvml", "expected", "calls"),
    [
        (Nvml(3), ["0", "1", "2"], ["init", "count", "shutdown"]),
        (Nvml(0), [], ["init", "count", "shutdown"]),
        (Nvml(3, get=999), [], ["init", "count", "shutdown"]),
        (Nvml(3, init=9), [], ["init"]),
    ],
)
def test_the_gpus_are_listed_by_nvml_which_is_shut_down(
    play_gpus: Callable[[Nvml], None], nvml: Nvml, expected: list[str], calls: list[str]
) -> None:
    play_gpus(nvml)
    assert gpu_ids({}) == expected
    assert nvml.calls == calls


@pytest.mark.parametrize(
    ("count", "visible", "message"),
    [
        (2, ["0", "7"], "names 7, but NVML, the library of NVIDIA's driver, finds 0, 1"),
        (2, ["GPU-1f", "1"], "names 1 again, so CUDA uses no GPU at all"),
        (0, ["0", "1"], "names a GPU, but this host has no GPU (NVML, the library of NVIDIA's driver, finds none)"),
    ],
)
def test_gpus_that_a_host_does_not_have_are_reported_wherever_they_are_named(
    ports: PortAllocator, play_gpus: Callable[[Nvml], None], count: int, visible: list[str], message: str
) -> None:
    play_gpus(Nvml(count))
    listed = ",".join(visible)
    (problem,) = problems_of(topology_of("worker: {tasks: 2, gpus: 1}"), ports, visible)
    assert problem.message == f"environment of localhost: CUDA_VISIBLE_DEVICES={listed} {message}"
    topology = topology_of(f"worker: {{tasks: 2, env: {{CUDA_VISIBLE_DEVICES: '{listed}'}}}}, ps: {{tasks: 1}}")
    (problem,) = problems_of(topology, ports, [])
    assert problem.message == f"env of worker:0, worker:1: CUDA_VISIBLE_DEVICES={listed} {message}"
    secret = topology_of(f"worker: {{tasks: 1, env: {{CUDA_VISIBLE_DEVICES: {{secret: '{listed}'}}}}}}")
    for shown in (topology_of("worker: {tasks: 2}"), secret):  # tasks without `gpus` see none; no secret is shown
        assert check(HostCheckInput(shown, "localhost", Path("/"), ports, visible))[1] == []


@pytest.mark.parametrize(
    ("count", "visible", "message"),
    [
        (4, ["0"], "localhost has 4, of which CUDA_VISIBLE_DEVICES allows 1"),
        (1, ["0"], "localhost has 1"),
        (0, [], "localhost has no GPU"),
    ],
)
def test_gpus_that_are_hidden_are_told_from_those_that_a_host_lacks(
    ports: PortAllocator, play_gpus: Callable[[Nvml], None], count: int, visible: list[str], message: str
) -> None:
    play_gpus(Nvml(count))
    (problem,) = problems_of(topology_of("worker: {tasks: 1, gpus: 2}"), ports, visible)
    assert problem.message == f"the tasks require 2 GPUs (worker:0 2), but {message}"


def line(name: str, uid: int, shell: str = "/bin/bash") -> str:
    return f"{name}:x:{uid}:{uid}:Some One,,,:/home/{name}:{shell}\n"


@pytest.mark.parametrize(
    ("passwd", "expected"),
    [
        ("", ("", [])),
        (line("root", 0) + line("me", 1000) + line("anna", 1001), ("me", ["anna"])),
        (line("me", 1000) + line("me-too", 1000), ("me", [])),
        (line("daemon", 999) + line("nobody", 65534) + line("late", 60001), ("", ["late"])),
        (line("locked", 1001, "/usr/sbin/nologin") + line("none", 1002, "/bin/false"), ("", [])),
        (line("odd", 1001, "/opt/shell") + line("default", 1002, ""), ("", ["odd", "default"])),
        ("+::::::\n# anna\n\nanna:x:1001\nben:x:many:1:::/bin/sh\n:x:1001:1:::/bin/sh\n", ("", [])),
        (line("ünïcode\ufffd", 1001), ("", ["ünïcode\ufffd"])),
    ],
)
def test_other_accounts_with_a_login_shell_are_listed(passwd: str, expected: tuple[str, list[str]]) -> None:
    assert login_accounts(passwd, uid=1000) == expected
