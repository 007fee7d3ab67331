"""The checks of `tfcluster doctor`: the preflight that `up` makes of all hosts, as a list of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfcluster.client.cluster import Cluster
from tfcluster.client.connectivity import ConnectivityFailure, check_connectivity
from tfcluster.client.dry_preflight import probe_hosts, release
from tfcluster.client.preflight import HostPreflight, Progress
from tfcluster.client.preflight_errors import ACCOUNTS_HINT, accounts_note, clock_warning, different_versions
from tfcluster.client.up import UNEXAMINED_TASKS, planned
from tfcluster.core.text import pluralize
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode

#: The `host` of a check that concerns all hosts together.
ALL_HOSTS = "all"


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        host: The host that was checked.
        check: What was checked: reach, host, clock, tasks, accounts, network or tensorflow.
        ok: Whether the check found no problem.
        result: What the check found.
        hint: What to type to fix a problem; for a check that passed, what can still be improved.
        examined: Whether the check could be made without changing the host.
    """

    host: str
    check: str
    ok: bool
    result: str
    hint: str = ""
    examined: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON values."""
        return asdict(self)


def check_hosts(wanted: ClusterTopology, progress: Progress) -> tuple[list[Check], ExitCode]:
    """Run the preflight of all hosts of a topology, changing nothing there and running no command of the spec.

    Args:
        wanted: The topology of a spec.
        progress: Called with the number of hosts examined so far, if there are several.

    Returns:
        Every check, and the exit code of the command.
    """
    cluster = Cluster(wanted.cluster, wanted.hosts, wanted.head().host)
    examined = probe_hosts(cluster, wanted, progress=progress, listen=len(cluster.hosts) > 1)
    try:
        checks = [check for host, each in examined.items() for check in _checks_of(host, each, wanted)]
        checks += [
            Check(ALL_HOSTS, "tensorflow", False, each.error.message, each.error.hint)
            for each in different_versions(examined)
        ]
        checks += _dialled(cluster, wanted, examined)
    finally:
        release(examined)
    codes = {problem.exit_code for each in examined.values() for problem in each.problems}
    if ExitCode.UNREACHABLE in codes:
        return checks, ExitCode.UNREACHABLE
    return checks, ExitCode.DONE if all(check.ok for check in checks) else ExitCode.FAILED


def _checks_of(host: str, examined: HostPreflight, wanted: ClusterTopology) -> Iterator[Check]:
    """Convert the preflight of one host into checks."""
    contact = examined.contact
    at_contact = list(contact.problems) if contact is not None else []
    away = [problem for problem in examined.problems if problem.exit_code is ExitCode.UNREACHABLE]
    if away:
        yield from (_failed(host, "reach", problem) for problem in away)
        return
    yield Check(host, "reach", True, "by ssh" if contact is not None else "this machine")
    yield from (_failed(host, "host", problem) for problem in at_contact)
    yield from (Check(host, "host", True, what, examined=False) for what in examined.unexamined)
    if not at_contact and (contact is None or contact.python):
        words = [f"TensorFlow {examined.tensorflow}"] if examined.tensorflow else []
        if contact is not None:
            words = [f"Python {contact.python_version}", *words, f"{contact.free_bytes >> 20} MiB free"]
        yield Check(host, "host", True, ", ".join(words))
    if contact is not None and contact.python:
        warning = clock_warning(examined)
        yield Check(
            host, "clock", warning is None, warning or f"{contact.clock_offset:+.1f} s", _CLOCK_HINT if warning else ""
        )
    at_agent = [problem for problem in examined.problems if problem not in at_contact]
    yield from (_failed(host, "tasks", problem) for problem in at_agent)
    if not examined.problems and not examined.is_whole:
        yield Check(host, "tasks", True, UNEXAMINED_TASKS, examined=False)
    elif not examined.problems:
        state = "up" if examined.found else "can start"
        yield Check(host, "tasks", True, f"{pluralize(len(wanted.on(host)), 'task')} {state}")
    if examined.accounts is not None:
        note = accounts_note(examined.accounts, alone=contact is None and len(wanted.hosts) == 1)
        yield Check(host, "accounts", True, note, ACCOUNTS_HINT)


_CLOCK_HINT = "`sudo timedatectl set-ntp true` has a clock set by a time server."


def _failed(host: str, check: str, problem: ClusterError) -> Check:
    message = problem.message.removeprefix(f"host {host!r}: ").removeprefix(f"host {host!r} ")
    return Check(host, check, False, message, problem.hint)


def _dialled(cluster: Cluster, wanted: ClusterTopology, examined: Mapping[str, HostPreflight]) -> Iterator[Check]:
    """Check whether the hosts that have no servers yet can connect to each other."""
    well = {host: each for host, each in examined.items() if not each.problems}
    probes = {host: each.probe for host, each in well.items() if each.probe is not None and each.probe.listens}
    hosts = list(probes)
    if len(hosts) < 2:
        return
    _, topology, _ = planned(wanted, well)
    refused, wrong = check_connectivity(
        cluster, topology, hosts, lambda host, addresses, timeout: probes[host].failures(addresses, timeout)
    )
    for host in hosts:
        yield from _dialled_from(host, [each for each in refused if each.host == host], wrong.get(host), len(hosts) - 1)


def _dialled_from(
    host: str, refused: list[ConnectivityFailure], error: ClusterError | None, others: int
) -> Iterator[Check]:
    if error is not None:
        yield _failed(host, "network", error)
    for each in refused:
        task = each.task
        yield Check(
            host, "network", False, f"cannot reach {task.short} at {task.address} on {task.host}: {each.why}", each.rule
        )
    if error is None and not refused:
        yield Check(host, "network", True, f"reaches the tasks of {pluralize(others, 'other host')}")
