"""Writes docs/limits.md, with the numbers of the settings, of the spec's schema and of pyproject.toml."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from itertools import count
from pathlib import Path

from make_reference import GENERATED, row_of

from tfcluster import settings
from tfcluster.os.bpf import _MAX_INSTRUCTIONS, _filter_program
from tfcluster.paths import CLUSTER_NAME
from tfcluster.programs import settings as program_settings
from tfcluster.programs.mean import RANDOM_NUMBERS_MAX
from tfcluster.providers.kubernetes.request import NAME_MAX
from tfcluster.spec.policies import Logs
from tfcluster.spec.schema import Job

DOCS = Path(__file__).parent
INTRODUCTION = f"""\
{GENERATED.format("tfcluster/settings.py, the models of the spec and pyproject.toml")}

# Requirements and limits

## Requirements

- Linux on x86-64 or ARM64. [Some features](#kernel-features) need a newer kernel.
- Python {{pythons}}.
- TensorFlow {{tensorflows}}, if it exists for your Python: 2.14 for 3.11, from 2.16 on for 3.12, from 2.20 on for 3.13.
  All tests run with Python 3.11 and TensorFlow 2.21, and the fast ones that use TensorFlow with 2.14.1 too. The fast
  tests were also run by hand with Python 3.13.
- For clusters on several hosts: OpenSSH, or another command that [`connect`](hosts.md#hosts-without-ssh) names, and on
  each host [a Python with TensorFlow](hosts.md#requirements).

## Kernel features

| feature | mechanism | Linux | capability | without it |
|---|---|---|---|---|
| supervision of processes without races | pidfd_open(), waitid(P_PIDFD) | 5.4 | none | tfcluster does not run, \
as the first line of `doctor` says |
| `network: closed` on one machine | seccomp user notification, SO_BINDTODEVICE | 5.7 | none; before 5.7 CAP_NET_RAW \
| `network: private` or `network: open` |
| `network: closed` on several hosts | seccomp user notification, a filter on the socket | 5.4 | CAP_NET_ADMIN \
| `network: private` or `network: open` |
| programs that listen, with `network: closed` | pidfd_getfd() | 5.6 | none; CAP_SYS_PTRACE with Docker's default \
profile, or if kernel.yama.ptrace_scope is 2; impossible if it is 3 | tasks and programs that do not listen; \
`network: private` or `network: open` |
| `network: private` | user and network namespaces | [not forbidden by a switch](network.md#where-it-is-forbidden) \
| none | `network: closed` or `network: open` |

`doctor` and `up` try each of them. The programs that listen are scripts, such as the chief of a
`ParameterServerStrategy`, and the members of `launch`. [Who can connect](network.md) explains the three values.
"""
STORAGE = "All of it is in the state folder, and stays after `down`.\n\n"


def limits_reference() -> str:
    """Return the page of requirements and limits as Markdown."""
    project = (DOCS.parent / "pyproject.toml").read_text()
    introduction = INTRODUCTION.format(
        pythons=supported_versions(project, "requires-python = "),
        tensorflows=supported_versions(project, '"tensorflow'),
    )
    tables = [
        section("Hosts and tasks", "", ("what", "limit"), cluster_limits()),
        section("What is stored, and for how long", STORAGE, ("what", "limit", "key of the spec"), storage_limits()),
        section("Runs", "", ("what", "limit"), run_limits()),
        section("Times", "", ("what", "time"), times()),
    ]
    return "\n".join([introduction, *tables])


def supported_versions(project: str, requirement: str) -> str:
    """Return the first and last version, such as `3.11 to 3.13`, that a line of pyproject.toml allows."""
    found = re.search(rf'{re.escape(requirement)}"?>=(\d+)\.(\d+),<\1\.(\d+)"', project)
    assert found is not None, requirement
    major, first, after = found.groups()
    return f"{major}.{first} to {major}.{int(after) - 1}"


def section(heading: str, text: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a section with a table; cells at the end of a row that it omits are empty."""
    cells = [columns, ("---",) * len(columns), *(row + ("",) * (len(columns) - len(row)) for row in rows)]
    return f"## {heading}\n\n{text}" + "".join(f"{row_of(each)}\n" for each in cells)


def cluster_limits() -> list[tuple[str, ...]]:
    """Return the rows on hosts, tasks and the spec."""
    cpus = next(each.le for each in Job.model_fields["cpus"].metadata if hasattr(each, "le"))
    name = next(length for length in count(1) if not CLUSTER_NAME.fullmatch("a" * (length + 1)))
    both, ipv4 = hosts_in_filter([IPv4Address, IPv6Address]), hosts_in_filter([IPv4Address])
    return [
        ("tasks of a cluster", f"{settings.MAX_TASKS:,}"),
        ("hosts with tasks", f"{settings.MAX_TASKS:,}; measured with [256](benchmarks.md)"),
        (
            "hosts in the packet filter of `network: closed`",
            f"{both:,} with both an IPv4 and an IPv6 address, {ipv4:,} with IPv4 only; fewer if an older kernel has a "
            "small `net.core.optmem_max`",
        ),
        ("logical CPU devices of a task (`cpus`)", f"{cpus}"),
        ("ports that tfcluster chooses", f"{settings.FIRST_PORT} to {settings.LAST_PORT}"),
        ("further ports of each host of a private cluster, for programs", f"{settings.PROGRAM_PORTS}"),
        ("characters of a cluster's name", f"{name}; with `kubernetes`, {NAME_MAX}"),
        (
            "size of a spec",
            f"{settings.SPEC_MAX_BYTES >> 20} MiB, {settings.SPEC_MAX_VALUES:,} values, "
            f"{settings.SPEC_MAX_DEPTH} levels",
        ),
        ("difference between the clocks of hosts before a warning", f"{settings.CLOCK_OFFSET_MAX_SECONDS:g} s"),
    ]


def hosts_in_filter(families: list[type[IPv4Address] | type[IPv6Address]]) -> int:
    """Return how many hosts, each with an address of each family, fit in the filter of a socket."""

    def fits(hosts: int) -> bool:
        addresses = [family(2 + host) for host in range(hosts) for family in families]
        return len(_filter_program(addresses)) <= _MAX_INSTRUCTIONS

    low, high = 1, _MAX_INSTRUCTIONS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def storage_limits() -> list[tuple[str, ...]]:
    """Return the rows on what is in the state folder, with the keys of the spec that change them."""
    logs = Logs()
    return [
        (
            "log of a task",
            f"{logs.count} files of {logs.size // 10**6} MB each; then the oldest is removed",
            "`logs: size`, `logs: count`",
        ),
        (
            "events of a host",
            f"{settings.EVENT_LOG_FILES} files of {settings.EVENT_LOG_FILE_BYTES // 10**6} MB each",
        ),
        ("output of a run", f"{logs.run // 10**6} MB: the beginning and the end", "`logs: run`"),
        ("output of all runs on a host", f"{logs.runs // 10**9} GB: the oldest runs lose theirs", "`logs: runs`"),
        (
            "records of runs, with the files in `$TFCLUSTER_OUTPUT`",
            f"the latest {settings.RUNS_KEPT} that have ended, on each host",
        ),
        (
            "code sent with scripts",
            f"{settings.CODE_CACHE_MAX_BYTES >> 30} GiB on each host; the least recently used is removed",
        ),
        ("notices that wait for a webhook or command", f"{settings.NOTICES_MAX}; then the oldest is dropped"),
        ("a line of a task's log", f"{settings.LOG_LINE_MAX_BYTES >> 20} MiB; a longer one is stored as several"),
        ("free space in the state folder before anything starts", f"{settings.MIN_FREE_DISK_BYTES >> 20} MiB"),
    ]


def run_limits() -> list[tuple[str, ...]]:
    """Return the rows on runs."""
    return [
        (
            "files that are sent with a script",
            f"{settings.CODE_FILES_MAX:,}; above {settings.CODE_UNASKED_FILES_MAX:,} files or "
            f"{settings.CODE_UNASKED_BYTES >> 20} MiB, `run` asks",
        ),
        ("trials of a sweep", f"{settings.SWEEP_TRIALS_MAX:,}"),
        (
            "names of metrics of a run",
            f"{settings.METRIC_NAMES_MAX}, with at most {settings.METRIC_NAME_MAX_CHARS} characters each",
        ),
        (
            "points of a metric that are all kept",
            f"{settings.METRIC_POINTS}; [after that, fewer](scripts.md#metrics-that-a-script-reports)",
        ),
        ("characters of an expression of `run graph`", f"{program_settings.EXPRESSION_MAX_CHARS:,}"),
        ("numbers of `run mean --random`", f"2^{RANDOM_NUMBERS_MAX.bit_length() - 1}"),
        ("time for a script to end after SIGTERM", f"{settings.DRIVER_TERMINATE_SECONDS:g} s"),
        ("processes of a script that `stack` shows", f"{settings.STACK_PROCESSES_MAX}"),
    ]


def times() -> list[tuple[str, ...]]:
    """Return the rows on how long tfcluster waits."""
    ssh_first = settings.SSH_KEEPALIVE_PROBES * settings.SSH_KEEPALIVE_SECONDS + 2
    ssh_last = (settings.SSH_KEEPALIVE_PROBES + 2) * settings.SSH_KEEPALIVE_SECONDS
    return [
        ("`up` waits for tasks to become ready (`--timeout`)", f"{settings.READY_TIMEOUT_SECONDS:g} s"),
        (
            "a task is probed",
            f"every {settings.HEALTH_INTERVAL_SECONDS:g} s; after a probe without an answer, every "
            f"{settings.HEALTH_RETRY_SECONDS:g} s",
        ),
        ("a task counts as unresponsive", f"after {settings.FAILED_PROBES_MAX} failed probes in a row"),
        ("a command waits for a host that answers slowly (`--timeout`)", f"{settings.HOST_TIMEOUT_SECONDS:g} s"),
        ("a new ssh connection is given up", f"after {settings.SSH_CONNECT_SECONDS} s"),
        ("the connection to a host stays open after the last command", f"{settings.SSH_PERSIST_SECONDS} s"),
        (
            "a connection to a host without an answer is closed",
            f"after {settings.PING_LOST_SECONDS:g} s; one of ssh after {ssh_first} to {ssh_last} s",
        ),
        ("`host-away` is reported", f"after {settings.HOST_AWAY_SECONDS:g} s"),
        (
            "a restarted launch, or a sweep without any other host, waits for a lost host",
            f"{settings.GROUP_RETURN_SECONDS:g} s",
        ),
        (
            "a temporary cluster of `launch` ends after its command was killed",
            f"{settings.LAUNCH_LEASE_SECONDS:g} s; with other hosts {settings.LAUNCH_REMOTE_LEASE_SECONDS:g} s",
        ),
    ]


if __name__ == "__main__":
    (DOCS / "limits.md").write_text(limits_reference())
