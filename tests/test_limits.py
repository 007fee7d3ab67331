"""The numbers in docs/limits.md are those of the code."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

import pytest

from tests.conftest import ROOT
from tfcluster import settings
from tfcluster.os.bpf import _MAX_INSTRUCTIONS, _filter_program
from tfcluster.programs import settings as program_settings
from tfcluster.programs.mean import RANDOM_NUMBERS_MAX
from tfcluster.providers.kubernetes.request import NAME_MAX
from tfcluster.spec.policies import Logs
from tfcluster.spec.schema import Job
from tfcluster.version import PROTOCOL, __version__

TEXT = (ROOT / "docs" / "limits.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", TEXT, re.MULTILINE))
LOGS = Logs()
CPUS = next(each.le for each in Job.model_fields["cpus"].metadata if hasattr(each, "le"))

#: The beginning of each row with numbers, and the numbers in it.
NUMBERS = {
    "tasks of a cluster": f"{settings.MAX_TASKS:,}",
    "hosts with tasks": f"{settings.MAX_TASKS:,}; ",
    "logical CPU devices": f"{CPUS}",
    "ports that tfcluster chooses": f"{settings.FIRST_PORT} to {settings.LAST_PORT}",
    "further ports of each host": f"{settings.PROGRAM_PORTS}",
    "characters of a cluster's name": f"63; with `kubernetes`, {NAME_MAX}",
    "size of a spec": f"{settings.SPEC_MAX_BYTES >> 20} MiB, {settings.SPEC_MAX_VALUES:,} values, "
    f"{settings.SPEC_MAX_DEPTH} levels",
    "difference between the clocks": f"{settings.CLOCK_OFFSET_MAX_SECONDS:g} s",
    "log of a task": f"{LOGS.count} files of {LOGS.size // 10**6} MB each",
    "events of a host": f"{settings.EVENT_LOG_FILES} files of {settings.EVENT_LOG_FILE_BYTES // 10**6} MB each",
    "output of a run": f"{LOGS.run // 10**6} MB: ",
    "output of all runs": f"{LOGS.runs // 10**9} GB: ",
    "records of runs": f"the latest {settings.RUNS_KEPT} that",
    "code sent with scripts": f"{settings.CODE_CACHE_MAX_BYTES >> 30} GiB on",
    "notices that wait": f"{settings.NOTICES_MAX}",
    "a line of a task's log": f"{settings.LOG_LINE_MAX_BYTES >> 20} MiB; ",
    "free space": f"{settings.MIN_FREE_DISK_BYTES >> 20} MiB",
    "files that are sent": f"{settings.CODE_FILES_MAX:,}; above {settings.CODE_UNASKED_FILES_MAX:,} files or "
    f"{settings.CODE_UNASKED_BYTES >> 20} MiB",
    "trials of a sweep": f"{settings.SWEEP_TRIALS_MAX:,}",
    "names of metrics": f"{settings.METRIC_NAMES_MAX}, with at most {settings.METRIC_NAME_MAX_CHARS} characters",
    "points of a metric": f"{settings.METRIC_POINTS}; ",
    "characters of an expression": f"{program_settings.EXPRESSION_MAX_CHARS:,}",
    "numbers of `run mean --random`": f"2^{RANDOM_NUMBERS_MAX.bit_length() - 1}",
    "time for a script to end": f"{settings.DRIVER_TERMINATE_SECONDS:g} s",
    "processes of a script": f"{settings.STACK_PROCESSES_MAX}",
    "`up` waits for tasks": f"{settings.READY_TIMEOUT_SECONDS:g} s",
    "a task is probed": f"every {settings.HEALTH_INTERVAL_SECONDS:g} s; after a probe without an answer, every "
    f"{settings.HEALTH_RETRY_SECONDS:g} s",
    "a task counts as unresponsive": f"after {settings.FAILED_PROBES_MAX} failed probes",
    "a command waits for a host": f"{settings.HOST_TIMEOUT_SECONDS:g} s",
    "a new ssh connection": f"after {settings.SSH_CONNECT_SECONDS} s",
    "the connection to a host stays open": f"{settings.SSH_PERSIST_SECONDS} s",
    "a connection to a host without an answer": f"after {settings.PING_LOST_SECONDS:g} s; one of ssh after "
    f"{settings.SSH_KEEPALIVE_PROBES * settings.SSH_KEEPALIVE_SECONDS + 2} to "
    f"{(settings.SSH_KEEPALIVE_PROBES + 2) * settings.SSH_KEEPALIVE_SECONDS} s",
    "`host-away` is reported": f"after {settings.HOST_AWAY_SECONDS:g} s",
    "a restarted launch, or a sweep": f"{settings.GROUP_RETURN_SECONDS:g} s",
    "a temporary cluster of `launch`": f"{settings.LAUNCH_LEASE_SECONDS:g} s; with other hosts "
    f"{settings.LAUNCH_REMOTE_LEASE_SECONDS:g} s",
}
#: Kernels and their features, and the packet filter.
OTHERS = {
    "supervision of",
    "`network: closed` on",
    "programs that listen",
    "`network: private`",
    "hosts in the packet filter",
}


@pytest.mark.parametrize("beginning", NUMBERS)
def test_a_number_is_that_of_the_code(beginning: str) -> None:
    (row,) = [value for name, value in ROWS.items() if name.startswith(beginning)]
    assert row.startswith(NUMBERS[beginning])


def test_the_packet_filter_holds_as_many_hosts_as_it_says() -> None:
    (row,) = [value for name, value in ROWS.items() if name.startswith("hosts in the packet filter")]
    both, ipv4 = (int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?= with)", row))
    for count, fits in ((ipv4, True), (ipv4 + 1, False)):
        assert (len(_filter_program([IPv4Address(1 + i) for i in range(count)])) <= _MAX_INSTRUCTIONS) == fits
    for count, fits in ((both, True), (both + 1, False)):
        addresses = [address(2 + i) for i in range(count) for address in (IPv4Address, IPv6Address)]
        assert (len(_filter_program(addresses)) <= _MAX_INSTRUCTIONS) == fits


def test_the_versions_are_those_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [(first, after)] = re.findall(r'requires-python = ">=(3\.\d+),<3\.(\d+)"', project)
    python = f"Python {first} to 3.{int(after) - 1}"
    [(first, after)] = re.findall(r'"tensorflow>=(2\.\d+),<2\.(\d+)"', project)
    assert python in (ROOT / "README.md").read_text()
    assert python in TEXT
    assert f"TensorFlow {first} to 2.{int(after) - 1}," in TEXT
    assert f"{__version__} (protocol {PROTOCOL})" in (ROOT / "docs" / "upgrade.md").read_text()


def test_every_row_is_compared() -> None:
    compared = (*NUMBERS, *OTHERS, "what", "feature", "---")
    assert [name for name in ROWS if not name.startswith(compared)] == []
