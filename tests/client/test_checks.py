"""The results of preflight checks, and the error that `up` makes of them: every problem, with its host and a fix."""

from __future__ import annotations

import pytest

from tests.core.clusters import topology_of
from tfcluster.client.preflight.checks import (
    ALL_HOSTS,
    CheckResult,
    HostPreflight,
    Severity,
    check_accounts,
    check_clock,
    check_each_host,
    check_versions,
    to_error,
)
from tfcluster.client.up import print_warnings
from tfcluster.core.hosts import OtherAccounts
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.remote_transport import HostReport

TOPOLOGY = topology_of(
    "name: demo\n"
    "hosts: {alpha: {address: 10.0.0.1}, beta: {address: 10.0.0.2}, gamma: {address: 10.0.0.3}}\n"
    "jobs:\n"
    "  ps: ['10.0.0.1:2222']\n"
    "  worker: ['10.0.0.2:2222', '10.0.0.3:2223']\n"
)
LOCAL = topology_of("jobs: {worker: {tasks: 1}}")


def error_of(host: str, error: ClusterError) -> CheckResult:
    return CheckResult(host, "tasks", Severity.ERROR, error.message, error.hint, error.exit_code)


def test_all_errors_are_combined_with_a_line_for_each() -> None:
    results = [
        error_of("alpha", ClusterError("port 2222 is taken\nport 2223 is taken", hint="Free them.")),
        error_of("beta", HostUnreachableError("beta", "timed out", "Type `ssh beta`.")),
        CheckResult("beta", "clock", Severity.WARNING, "its clock is off"),
        CheckResult(ALL_HOSTS, "versions", Severity.ERROR, "different versions"),
    ]
    error = to_error(results, is_local=False)
    assert error is not None
    assert error.exit_code is ExitCode.UNREACHABLE
    assert error.message.splitlines() == [
        "Nothing was started; 3 problems found:",
        "  host 'alpha': port 2222 is taken",
        "  host 'alpha': port 2223 is taken",
        "    Free them.",
        "  host 'beta' cannot be reached: timed out",
        "    Type `ssh beta`.",
        "  different versions",
    ]


def test_an_error_on_this_machine_alone_has_no_host_name() -> None:
    errors = [error_of("localhost", ClusterError(text, hint="x")) for text in "ab"]
    error = to_error(errors, is_local=True)
    assert error is not None
    assert (error.message, error.hint, error.exit_code) == ("a\nb", "x", ExitCode.FAILED)


def test_warnings_and_notes_are_no_error() -> None:
    others = [CheckResult("a", "x", severity, "") for severity in Severity if severity is not Severity.ERROR]
    assert to_error(others, is_local=False) is None


def test_each_result_is_the_row_that_doctor_prints() -> None:
    host = HostPreflight(tensorflow="2.21.0", is_examined=True)
    failed = HostPreflight(problems=[("ports", ClusterError("worker:0: port 1 is taken", hint="Free it."))])
    unexamined = HostPreflight(unexamined=["`setup:` has not been run there"])
    rows = [
        [(each.check, each.is_ok, each.text) for each in check_each_host(LOCAL, {"localhost": preflight})]
        for preflight in (host, failed, unexamined)
    ]
    assert rows[0] == [
        ("reach", True, "this machine"),
        ("host", True, "TensorFlow 2.21.0"),
        ("tasks", True, "1 task can start"),
    ]
    assert rows[1][0] == ("ports", False, "worker:0: port 1 is taken")
    assert "tasks" not in [check for check, _, _ in rows[1]]
    results = list(check_each_host(LOCAL, {"localhost": unexamined}))
    assert [each.check for each in results if not each.to_json()["examined"]] == ["host", "tasks"]


def test_different_versions_are_an_error_that_names_the_hosts() -> None:
    same = {
        "alpha": HostPreflight(tensorflow="2.21.0"),
        "beta": HostPreflight(tensorflow="2.21.0"),
        "gamma": HostPreflight(),
    }
    assert list(check_versions(same)) == []
    (result,) = check_versions({**same, "gamma": HostPreflight(tensorflow="2.14.1")})
    assert result.result == "the hosts have different versions of TensorFlow: 2.14.1 on gamma; 2.21.0 on alpha, beta"
    assert "--allow-version-mismatch" in result.hint


def test_a_clock_offset_beyond_the_error_of_its_measurement_is_a_warning() -> None:
    def warning(offset: float, error: float) -> str | None:
        report = HostReport("beta", python="python3", clock_offset=offset, clock_error=error)
        (result,) = check_clock("beta", HostPreflight(report), TOPOLOGY)
        return result.result if result.severity is Severity.WARNING else None

    assert list(check_clock("localhost", HostPreflight(), LOCAL)) == []
    assert warning(4.9, 0.0) is None
    assert warning(30.0, 31.0) is None
    assert (warning(30.0, 0.1) or "").startswith("its clock is 30 s ahead of this machine's")
    assert (warning(-6.0, 0.1) or "").startswith("its clock is 6 s behind this machine's")


def test_other_accounts_are_a_note_that_says_what_they_can_do() -> None:
    def note(accounts: OtherAccounts, topology: ClusterTopology) -> str:
        (result,) = check_accounts("localhost", HostPreflight(accounts=accounts), topology)
        assert result.severity is Severity.NOTE
        return result.result

    assert note(OtherAccounts("me", 1, ("anna",)), LOCAL) == (
        "1 other account can log in there (anna): it can connect to this cluster's servers through 127.0.0.1 "
        "and run code as me"
    )
    assert note(OtherAccounts("tf", 12, ("anna", "ben", "cleo")), TOPOLOGY) == (
        "12 other accounts can log in there (anna, ben, cleo, ...): any of them can connect to this cluster's servers "
        "from there and run code as tf"
    )


def test_up_prints_what_several_hosts_have_in_common_once(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = {f"h{number}": HostPreflight(accounts=OtherAccounts("tf", 1, ("anna",))) for number in range(48)}
    hosts["late"] = HostPreflight(HostReport("late", python="python3", clock_offset=-90.0))
    print_warnings(check_each_host(TOPOLOGY, hosts), hosts, is_local=False)
    warning, note = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: host 'late': its clock is 90 s behind this machine's")
    assert note.startswith("note: hosts h0, h1, h2, h3 and 44 more: 1 other account can log in there (anna): ")
