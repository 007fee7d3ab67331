"""What an examination of several hosts found wrong, in words: every problem, with its host and what to type."""

from __future__ import annotations

from tests.core.clusters import topology_of
from tfcluster.client.cluster import Cluster
from tfcluster.client.connectivity import ConnectivityFailure, check_connectivity
from tfcluster.client.preflight import HostPreflight
from tfcluster.client.preflight_errors import (
    PreflightProblem,
    accounts_note,
    clock_warning,
    different_versions,
    refused_connections,
    told,
)
from tfcluster.core.accounts import OtherAccounts
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api.cluster import ReachReply, ReachRequest
from tfcluster.transport.base import HostUnreachableError
from tfcluster.transport.ssh import HostReport

LAYOUT = topology_of(
    "name: demo\n"
    "hosts: {alpha: {address: 10.0.0.1}, beta: {address: 10.0.0.2}, gamma: {address: 10.0.0.3}}\n"
    "jobs:\n"
    "  ps: ['10.0.0.1:2222']\n"
    "  worker: ['10.0.0.2:2222', '10.0.0.3:2223']\n"
)


def test_all_problems_are_one_error_with_a_line_for_each() -> None:
    problems = [
        PreflightProblem("alpha", ClusterError("port 2222 is taken\nport 2223 is taken", hint="Free them.")),
        PreflightProblem("beta", HostUnreachableError("beta", "timed out", "Type `ssh beta`.")),
        PreflightProblem("", ClusterError("gamma cannot reach ps:0")),
    ]
    error = told(problems, alone=False)
    assert error.exit_code is ExitCode.UNREACHABLE
    assert error.message.splitlines() == [
        "3 problems, and nothing was started",
        "  host 'alpha': port 2222 is taken",
        "  host 'alpha': port 2223 is taken",
        "    Free them.",
        "  host 'beta' cannot be reached: timed out",
        "    Type `ssh beta`.",
        "  gamma cannot reach ps:0",
    ]


def test_this_machine_alone_has_no_name() -> None:
    error = told(
        [
            PreflightProblem("localhost", ClusterError("a", hint="x")),
            PreflightProblem("localhost", ClusterError("b", hint="x")),
        ],
        alone=True,
    )
    assert (error.message, error.hint, error.exit_code) == ("a\nb", "x", ExitCode.FAILED)


def test_versions_that_differ_are_a_problem_that_names_the_hosts() -> None:
    same = {
        "alpha": HostPreflight(tensorflow="2.21.0"),
        "beta": HostPreflight(tensorflow="2.21.0"),
        "gamma": HostPreflight(),
    }
    assert different_versions(same) == []
    (problem,) = different_versions({**same, "gamma": HostPreflight(tensorflow="2.14.1")})
    assert problem.lines == [
        "the hosts have different versions of TensorFlow: 2.14.1 on gamma; 2.21.0 on alpha, beta",
    ]
    assert "--mixed-tensorflow" in problem.error.hint


def test_a_clock_that_is_certainly_off_is_told() -> None:
    def warning(offset: float, error: float) -> str | None:
        return clock_warning(HostPreflight(HostReport("beta", clock_offset=offset, clock_error=error)))

    assert clock_warning(HostPreflight()) is None
    assert warning(4.9, 0.0) is None
    assert warning(30.0, 31.0) is None
    assert (warning(30.0, 0.1) or "").startswith("its clock is 30 s ahead of this machine's")
    assert (warning(-6.0, 0.1) or "").startswith("its clock is 6 s behind this machine's")


class Dialled(Cluster):
    """A cluster whose hosts say whom they cannot reach."""

    def __init__(self, failures: dict[str, dict[str, str]]) -> None:
        super().__init__("demo", LAYOUT.hosts, "alpha")
        self.failures = failures
        self.asked: dict[str, list[str]] = {}

    def connect(self, host: str) -> object:  # type: ignore[override]
        cluster = self

        class Connected:
            def call(self, request: ReachRequest) -> ReachReply:
                cluster.asked[host] = list(request.addresses)
                if host not in cluster.failures:
                    raise HostUnreachableError(host, "timed out")
                return ReachReply(cluster.failures[host])

        return Connected()


def test_hosts_dial_the_tasks_of_all_others_and_failures_name_both_and_the_rule() -> None:
    cluster = Dialled({"alpha": {}, "beta": {"10.0.0.3:2223": "timed out"}})
    refused, wrong = check_connectivity(cluster, LAYOUT, ["alpha", "beta", "gamma"])
    assert cluster.asked == {
        "alpha": ["10.0.0.2:2222", "10.0.0.3:2223"],
        "beta": ["10.0.0.1:2222", "10.0.0.3:2223"],
        "gamma": ["10.0.0.1:2222", "10.0.0.2:2222"],
    }
    assert refused == [ConnectivityFailure("beta", "10.0.0.2", LAYOUT.tasks[2], "timed out")]
    away, unreached = refused_connections(refused, wrong)
    assert away.lines == ["host 'gamma' cannot be reached: timed out"]
    assert unreached.lines == ["beta cannot reach worker:1 at 10.0.0.3:2223 on gamma: timed out"]
    assert "`sudo iptables -I INPUT -p tcp -s 10.0.0.2 --dport 2223 -j ACCEPT`" in unreached.error.hint


def test_one_host_has_nobody_to_dial() -> None:
    cluster = Dialled({})
    assert check_connectivity(cluster, LAYOUT, ["alpha"]) == ([], {})
    assert cluster.asked == {}


def test_other_accounts_are_told_with_what_they_can_do() -> None:
    assert accounts_note(OtherAccounts("me", 1, ("anna",)), alone=True) == (
        "1 other account can log in there (anna): it can connect to this cluster's servers through 127.0.0.1 "
        "and run code as me"
    )
    assert accounts_note(OtherAccounts("tf", 12, ("anna", "ben", "cleo")), alone=False) == (
        "12 other accounts can log in there (anna, ben, cleo, ...): any of them can connect to this cluster's servers "
        "from there and run code as tf"
    )
