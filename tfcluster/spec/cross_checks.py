"""Normalize the hosts of a spec, and cross-check the hosts, jobs and addresses against each other."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from tfcluster import settings
from tfcluster.paths import HOME_PREFIX, LOCAL_HOST
from tfcluster.providers.requests import normalize_requests
from tfcluster.spec.diagnostics import Diagnostic, KeyPath, Position, shorten
from tfcluster.spec.host_ranges import expand_ranges
from tfcluster.spec.hosts import LOCAL_ONLY, host_for_address, is_loopback, normalize_address, read_hostfile
from tfcluster.spec.schema import Address
from tfcluster.spec.yaml_source import YamlDocument

_HOSTS: KeyPath = ("hosts",)
_HOSTFILE: KeyPath = ("hostfile",)
_NOT_FOR_LOCALHOST = {
    "ssh": ("localhost is this machine and needs no ssh destination", "give the host another name"),
    "connect": ("localhost is this machine and needs no way to it", "give the host another name"),
    "python": ("on localhost it is the one that runs this command", "delete this key"),
    "shell": ("on localhost this command runs already, so it comes too late", "type it before the command"),
    "state": ("on localhost it is in XDG_STATE_HOME, where every command looks for it", "set XDG_STATE_HOME"),
    "setup": ("on localhost this command runs already, so it comes too late", "run it yourself"),
}


def normalize_hosts(source: YamlDocument) -> None:
    """Normalize `hosts`, a mapping, a list, a hostfile or what a provider is asked for, to a mapping.

    Problems go to the document.
    """
    expand_ranges(source)
    if normalize_requests(source):
        return
    hosts, file = source.value.get("hosts"), source.value.get("hostfile")
    if isinstance(file, str) and hosts is not None:
        source.report_key(_HOSTFILE, "hosts: already names the hosts", "keep one of the two")
    elif isinstance(file, str):
        _gather_from_file(file, source)
    if isinstance(hosts, list) and hosts:
        _gather_from_list(hosts, source)


def _gather_from_file(file: str, source: YamlDocument) -> None:
    at = source.values[_HOSTFILE]
    path = Path(source.file).parent / (os.path.expanduser(file) if file.startswith(HOME_PREFIX) else file)
    try:
        slots, problems = read_hostfile(path)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        slots, problems = {}, [source.problem(_HOSTFILE, f"{path}: {reason}", at=at)]
    if problems:
        source.problems += problems
        source.broken.add(_HOSTS)
    source.value |= {"hosts": {name: {"slots": count} for name, count in slots.items()}, "hostfile": None}
    _note_positions(dict.fromkeys(slots, at), source)


def _gather_from_list(listed: list[Any], source: YamlDocument) -> None:
    positions: dict[str, Position] = {}
    for index, name in enumerate(listed):
        path: KeyPath = (*_HOSTS, index)
        at = source.values[path]
        if source.has_error(path):
            continue
        if not isinstance(name, str):
            hint = "write the hosts without dashes to give them keys" if isinstance(name, dict) else ""
            message = f"expected the name of a host, found {source.describe(path, name)}"
            source.problems.append(source.problem(path, message, hint, at))
        elif name in positions:
            first = positions[name]
            message = f"this host is already at line {first.line}, column {first.column}"
            source.problems.append(source.problem(path, message, "keep one of the two", at))
        else:
            positions[name] = at
    if not positions:
        source.broken.add(_HOSTS)
    source.value["hosts"] = dict.fromkeys(positions)
    _note_positions(positions, source)


def _note_positions(positions: Mapping[str, Position], source: YamlDocument) -> None:
    for name, at in positions.items():
        path: KeyPath = (*_HOSTS, name)
        source.keys[path] = source.values[path] = at


def check_task_count(source: YamlDocument) -> Iterator[Diagnostic]:
    """Yield the first job with which the cluster has too many tasks; the schema limits each job by itself."""
    total = 0
    for name, job in _jobs(source).items():
        tasks = job.get("tasks") if isinstance(job, dict) else job
        count = len(tasks) if isinstance(tasks, list) else tasks if type(tasks) is int else 0
        total += max(0, count)
        if count <= settings.MAX_TASKS < total:
            path: KeyPath = ("jobs", name)
            message = f"with this job the cluster has more than {settings.MAX_TASKS} tasks"
            yield source.problem(path, message, "split them into several clusters", source.keys[path])
            return


def check_host_references(source: YamlDocument) -> Iterator[Diagnostic]:
    """Yield the inconsistencies between the hosts, jobs and addresses of a spec; call `normalize_hosts` before."""
    hosts = source.value.get("hosts")
    if hosts is None:
        addresses = LOCAL_ONLY
    elif isinstance(hosts, dict) and not source.has_error(_HOSTS):
        addresses = {name: _read_address(name, host) for name, host in hosts.items()}
        yield from _misplaced_on_localhost(hosts.get(LOCAL_HOST), source)
        yield from _two_ways(hosts, source)
        yield from _unusable_addresses(addresses, source)
    else:
        return  # the problems of the hosts have been reported already
    yield from _unknown_hosts(addresses, source)
    yield from _misplaced_tasks(addresses, source)


def _read_address(name: str, host: Any) -> str:
    address = host.get("address") if isinstance(host, dict) else None
    return address if isinstance(address, str) else name


def _misplaced_on_localhost(host: Any, source: YamlDocument) -> Iterator[Diagnostic]:
    for key, (message, hint) in _NOT_FOR_LOCALHOST.items():
        if isinstance(host, dict) and host.get(key):
            path: KeyPath = (*_HOSTS, LOCAL_HOST, key)
            yield source.problem(path, message, hint, source.keys[path])


def _two_ways(hosts: Mapping[str, Any], source: YamlDocument) -> Iterator[Diagnostic]:
    for name, host in hosts.items():
        if isinstance(host, dict) and host.get("ssh") and host.get("connect"):
            path: KeyPath = (*_HOSTS, name, "ssh")
            message = "connect: already says how the host is reached"
            yield source.problem(path, message, "keep one of the two", source.keys[path])


def _unusable_addresses(addresses: Mapping[str, str], source: YamlDocument) -> Iterator[Diagnostic]:
    owners: dict[str, str] = {}
    for name, address in addresses.items():
        path: KeyPath = (*_HOSTS, name)
        at = source.values.get((*path, "address"), source.keys[path])
        owner = owners.setdefault(normalize_address(address), name)
        if owner != name:
            yield source.problem(path, f"it has the address {shorten(address)} of {shorten(owner)}", at=at)
        elif is_loopback(address) and len(addresses) > 1:
            message = f"the other hosts cannot connect to {address}"
            yield source.problem(path, message, "give it an address: that they can connect to, under hosts:", at)


def _unknown_hosts(addresses: Mapping[str, str], source: YamlDocument) -> Iterator[Diagnostic]:
    for job, value in _jobs(source).items():
        hosts = value.get("hosts") if isinstance(value, dict) else None
        path: KeyPath = ("jobs", job, "hosts")
        if hosts is not None and isinstance(value.get("tasks"), list):
            message = "the addresses of the tasks already name their hosts"
            yield source.problem(path, message, "delete it, or give the number of tasks", source.keys[path])
        for index, name in enumerate(hosts) if isinstance(hosts, list) else ():
            if isinstance(name, str) and name not in addresses:
                inner: KeyPath = (*path, index)
                message = f"no host has the name {shorten(name)!r}"
                yield source.problem(inner, message, _known(name, addresses), source.values[inner])


def _misplaced_tasks(addresses: Mapping[str, str], source: YamlDocument) -> Iterator[Diagnostic]:
    """Yield a problem for each task that is on no host, or whose port is in use by another task of its host.

    Even with different addresses: a server listens on every interface.
    """
    owners: dict[tuple[str, int], tuple[str, Address]] = {}
    for task, path, text in _written_addresses(source):
        try:
            address = Address.parse(text)
        except PydanticCustomError:
            continue  # the validation of the schema reports this problem
        host = host_for_address(address.host, addresses)
        if host is None and addresses is LOCAL_ONLY:
            message = f"the task's address is not on this machine: {shorten(address.host)!r}"
            hint = f"write localhost:{address.port or 'PORT'}, or give the spec hosts:"
            yield source.problem(path, message, hint, source.values[path])
        elif host is None:
            message = f"no host has the name or the address {shorten(address.host)!r}"
            yield source.problem(path, message, _known(address.host, addresses), source.values[path])
        elif address.port is not None:
            first, other = owners.setdefault((host, address.port), (task, address))
            if first != task:
                yield source.problem(path, *_same_port(task, address, first, other), source.values[path])


def _same_port(task: str, address: Address, first: str, other: Address) -> tuple[str, str]:
    if other == address:
        return f"{task} has the address {address} of {first}", ""
    message = f"{task} has the port of {first}, which is {other}"
    return message, "a TensorFlow server listens on every interface"


def _written_addresses(source: YamlDocument) -> Iterator[tuple[str, KeyPath, str]]:
    for name, job in _jobs(source).items():
        tasks = job.get("tasks") if isinstance(job, dict) else job
        path: KeyPath = ("jobs", name, "tasks") if isinstance(job, dict) else ("jobs", name)
        for index, text in enumerate(tasks) if isinstance(tasks, list) else ():
            if isinstance(text, str):
                yield f"{name}:{index}", (*path, index), text


def _jobs(source: YamlDocument) -> dict[str, Any]:
    jobs = source.value.get("jobs")
    return jobs if isinstance(jobs, dict) else {}


def _known(name: str, addresses: Mapping[str, str]) -> str:
    if addresses is LOCAL_ONLY:
        return "name it under hosts:"
    if similar := difflib.get_close_matches(name, addresses, n=1):
        return f"did you mean {similar[0]!r}?"
    return f"the hosts are {shorten(', '.join(addresses))}"
