"""The preflight of `up` and `doctor`: what it checks, who connects to whom and gets a certificate, and what it says."""

from __future__ import annotations

import datetime
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from tests.core.clusters import topology_of
from tfcluster import paths
from tfcluster.client.cluster import Cluster
from tfcluster.client.preflight.certificates import Authority, issue_certificates
from tfcluster.client.preflight.checks import (
    ALL_HOSTS,
    AgentInspector,
    CheckResult,
    HostPreflight,
    Severity,
    check_accounts,
    check_clock,
    check_each_host,
    check_threads,
    check_usage,
    check_versions,
    to_error,
)
from tfcluster.client.preflight.preflight import (
    check_connectivity,
    check_hosts,
    choose_peers,
    firewall_rules,
    hosts_without_certificate,
)
from tfcluster.client.up import print_warnings
from tfcluster.core.forwarding import Certificate, CertificateFacts
from tfcluster.core.hosts import Host, OtherAccounts
from tfcluster.core.reconcile import ObservedState
from tfcluster.core.topology import PRIVATE, ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import authority_path
from tfcluster.protocol.api.cluster import (
    LARGE_PACKETS_LOST,
    Allocation,
    Observation,
    Preparation,
    ReachReply,
    ReachRequest,
)
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.remote_transport import HostReport

TOPOLOGY = topology_of(
    "name: demo\n"
    "hosts: {alpha: {address: 10.0.0.1}, beta: {address: 10.0.0.2}, gamma: {address: 10.0.0.3}}\n"
    "jobs:\n"
    "  ps: ['10.0.0.1:2222']\n"
    "  worker: ['10.0.0.2:2222', '10.0.0.3:2223']\n"
)
HOSTS = ("alpha", "beta", "gamma")
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


def test_an_error_on_this_machine_has_no_host_name_and_warnings_and_notes_are_none() -> None:
    errors = [error_of("localhost", ClusterError(text, hint="x")) for text in "ab"]
    error = to_error(errors, is_local=True)
    assert error is not None
    assert (error.message, error.hint, error.exit_code) == ("a\nb", "x", ExitCode.FAILED)
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


def test_a_host_without_psutil_has_a_note_with_the_command_that_installs_it() -> None:
    lacking = HostPreflight(python="/opt/my tf/bin/python", psutil_problem="No module named 'psutil'")
    (note,) = check_usage("alpha", lacking, TOPOLOGY)
    assert (note.severity, note.is_ok) == (Severity.NOTE, True)
    assert note.text.startswith("its Python cannot use psutil (No module named 'psutil'): ")
    assert "`'/opt/my tf/bin/python' -m pip install psutil`" in note.hint
    assert [*check_usage("alpha", HostPreflight(), TOPOLOGY)] == []


@pytest.mark.parametrize(
    ("jobs", "quota", "note"),
    [
        ("worker: {tasks: 3}", None, None),
        ("worker: {tasks: 3}", 8.0, None),  # then only the cores are a limit, as on any machine
        ("worker: {tasks: 3, threads: 1}", 3.5, None),
        ("worker: {tasks: 2, threads: 2}, ps: {tasks: 1, threads: 1}", 5.0, None),
        ("worker: {tasks: 9, threads: 1}", 3.5, None),  # they cannot have fewer
        ("worker: {tasks: 1}", 3.5, ("1 task there compute with 8 threads", "`threads: 3`")),
        (
            "worker: {tasks: 2, threads: 2}, ps: {tasks: 1}",
            6.0,
            ("3 tasks there compute with 12 threads", "`threads: 2`"),
        ),
        ("worker: {tasks: 9}", 3.5, ("9 tasks there compute with 72 threads", "`threads: 1`")),
    ],
)
def test_a_host_whose_tasks_have_more_threads_than_its_quota_has_a_note(
    jobs: str, quota: float | None, note: tuple[str, str] | None
) -> None:
    topology = topology_of(f"jobs: {{{jobs}}}")
    found = [*check_threads("localhost", HostPreflight(cores=8, cpu_quota=quota), topology)]
    assert [each.severity for each in found] == [Severity.NOTE] * (note is not None)
    for each in found:
        assert note is not None
        assert f"is {quota:g} of 8 cores" in each.text
        assert note[0] in each.text
        assert note[1] in each.hint


def test_up_prints_what_several_hosts_have_in_common_once(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = {f"h{number}": HostPreflight(accounts=OtherAccounts("tf", 1, ("anna",))) for number in range(48)}
    hosts["late"] = HostPreflight(HostReport("late", python="python3", clock_offset=-90.0))
    programs = ("programs", ClusterError("scripts cannot listen", hint="Add a capability."))
    boxes = {name: HostPreflight(warnings=[programs]) for name in ("box0", "box1")}
    results = check_each_host(TOPOLOGY, {**hosts, **boxes})
    assert to_error(results, is_local=False) is None
    print_warnings(results, {**hosts, **boxes}, is_local=False)
    clock, warning, note = capsys.readouterr().err.splitlines()
    assert clock.startswith("warning: host 'late': its clock is 90 s behind this machine's")
    assert warning == "warning: hosts box0, box1: scripts cannot listen. Add a capability."
    assert note.startswith("note: hosts h0, h1, h2, h3 and 44 more: 1 other account can log in there (anna): ")


class FakeInspector(AgentInspector):
    """A host that says which addresses it cannot connect to; `find_failures` returns None if it cannot be asked.

    `sources` is what the other hosts see of it.
    """

    def __init__(
        self, find_failures: Callable[[Sequence[str]], Mapping[str, str] | None], sources: dict[str, str] | None = None
    ) -> None:
        self.addresses: list[str] = []
        self.answered: list[str] = []
        self.is_changed = False  # since it was observed
        self._find_failures = find_failures
        self._sources = sources or {}

    def observe(self) -> Observation:
        return Observation(None)

    def has_changed(self, observed: ObservedState | None) -> bool:
        return self.is_changed

    def prepare(self, topology: ClusterTopology, *, listens: bool) -> Preparation:
        return Preparation(None, Allocation({}, {}), (), None)

    def reach(self, request: ReachRequest) -> ReachReply:
        self.addresses += request.addresses
        self.answered += request.answered
        failures = self._find_failures(request.addresses)
        if failures is None:
            raise HostUnreachableError("gamma", "timed out")
        return ReachReply(dict(failures), self._sources)

    def close(self) -> None:
        pass


def preflights(inspectors: Mapping[str, FakeInspector]) -> dict[str, HostPreflight]:
    return {host: HostPreflight(inspector=each, is_examined=True) for host, each in inspectors.items()}


def cluster_with(count: int, tasks: int = 1) -> ClusterTopology:
    """Return a cluster on hosts h0, h1, … at 10.0.0.100 and so on, each with some tasks from port 2222 on."""
    hosts = ", ".join(f"h{number}: {{address: 10.0.0.{100 + number}}}" for number in range(count))
    tasks_of_host = [f"'10.0.0.{100 + number}:{2222 + task}'" for number in range(count) for task in range(tasks)]
    return topology_of(f"name: demo\nhosts: {{{hosts}}}\njobs: {{worker: [{', '.join(tasks_of_host)}]}}\n")


def connect_all(topology: ClusterTopology, why: Callable[[str, str], str]) -> list[CheckResult]:
    """Return the results, given a function that says why a host cannot connect to an address; empty if it can."""

    def inspector(source: str) -> FakeInspector:
        return FakeInspector(
            lambda addresses: {address: why(source, address) for address in addresses if why(source, address)}
        )

    hosts = preflights({host.name: inspector(host.name) for host in topology.hosts})
    return check_connectivity(Cluster("demo", topology.hosts, topology.hosts[0].name), topology, hosts)


def problems(results: Sequence[CheckResult]) -> list[str]:
    return [result.result for result in results if not result.is_ok]


@pytest.mark.parametrize("count", [2, 3, 15])
def test_up_to_fifteen_hosts_try_all_others(count: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    assert {host: sorted(peers) for host, peers in choose_peers(hosts).items()} == {
        host: sorted({*hosts} - {host}) for host in hosts
    }


@pytest.mark.parametrize("count", [16, 17, 48, 100, 1000])
def test_many_hosts_try_few_others_and_each_is_tried_by_as_many(count: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    chosen = choose_peers(hosts)
    number = (count - 1).bit_length()  # the logarithm of base 2, rounded up
    assert {host: len({*peers} - {host}) for host, peers in chosen.items()} == dict.fromkeys(hosts, number)
    assert Counter(peer for peers in chosen.values() for peer in peers) == dict.fromkeys(hosts, number)
    assert chosen == choose_peers(hosts)


def test_hosts_connect_to_the_tasks_of_all_others_and_failures_name_both_and_the_rule() -> None:
    failures = {"alpha": {}, "beta": {"10.0.0.3:2223": "timed out"}, "gamma": None}
    inspectors = {host: FakeInspector(lambda _, each=each: each) for host, each in failures.items()}  # type: ignore[misc]
    gamma, beta, alpha = check_connectivity(Cluster("demo", TOPOLOGY.hosts, "alpha"), TOPOLOGY, preflights(inspectors))
    assert {host: sorted(each.addresses) for host, each in inspectors.items()} == {
        "alpha": ["10.0.0.2:2222", "10.0.0.3:2223"],
        "beta": ["10.0.0.1:2222", "10.0.0.3:2223"],
        "gamma": ["10.0.0.1:2222", "10.0.0.2:2222"],
    }
    assert gamma.result == "host 'gamma' cannot be reached: timed out"
    assert (alpha.severity, alpha.result) == (Severity.OK, "reaches the tasks of 2 other hosts")
    assert beta.host == "gamma"
    assert beta.result == "host 'gamma' cannot be reached from beta at 10.0.0.3:2223 (worker:1): timed out"
    assert "`sudo iptables -I INPUT -p tcp -s 10.0.0.2 --dport 2223 -j ACCEPT`" in beta.hint


def test_a_host_behind_a_firewall_is_one_problem_however_many_hosts_and_tasks_there_are() -> None:
    topology = cluster_with(20, tasks=8)
    results = connect_all(topology, lambda _, address: "timed out" if address.startswith("10.0.0.103:") else "")
    (problem,) = [result for result in results if not result.is_ok]
    assert (problem.host, problem.severity) == ("h3", Severity.ERROR)
    assert problem.result == (
        "host 'h3' cannot be reached from h1, h2, h7, h15 and 1 more at 10.0.0.103:2222 (worker:24), "
        "10.0.0.103:2223 (worker:25), 10.0.0.103:2224 (worker:26), 10.0.0.103:2225 (worker:27) and 4 more: timed out"
    )
    # The rule opens all its ports to all other hosts: those that did not try it will connect to it, too.
    others = ",".join(f"10.0.0.{100 + number}" for number in range(20) if number != 3)
    assert f"`sudo iptables -I INPUT -p tcp -s {others} --dport 2222:2229 -j ACCEPT`" in problem.hint
    reaching = [result for result in results if result.is_ok]
    assert {result.result for result in reaching} == {
        "reaches the tasks of the 5 other hosts that it tried, of 19",
    }
    assert len(reaching) == 20 - 5


def test_a_host_that_nothing_leaves_is_one_problem() -> None:
    results = connect_all(cluster_with(20), lambda source, _: "No route to host" if source == "h3" else "")
    (problem,) = [result for result in results if not result.is_ok]
    assert problem.result == "host 'h3' reaches none of the hosts that it tried (5): No route to host"
    assert "`ip route get 10.0.0.104`" in problem.hint


def toward(target: str, **why: str) -> dict[tuple[str, str], str]:
    """Why the connections of some of five hosts to one of them fail."""
    return {(source, f"10.0.0.10{target[1:]}:2222"): text for source, text in why.items()}


_OUT_OF_H1 = {("h1", f"10.0.0.10{number}:2222"): "timed out" for number in range(5)}
_INTO_H1 = toward("h1", h0="timed out", h2="timed out", h3="timed out")
_FROM_H1 = {**toward("h0", h1="timed out"), **toward("h2", h1="timed out"), **toward("h3", h1="timed out")}


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (
            {**_OUT_OF_H1, **_INTO_H1, **toward("h1", h4="timed out")},
            [
                "host 'h1' cannot be reached from h0, h2, h3, h4 at 10.0.0.101:2222 (worker:1): timed out",
                "host 'h1' reaches none of the hosts that it tried (4): timed out",
            ],
        ),
        (
            {**_FROM_H1, **_INTO_H1},
            [
                "host 'h1' cannot be reached from h0, h2, h3 at 10.0.0.101:2222 (worker:1): timed out",
                "host 'h1' cannot reach h2, h3, h0: timed out",
            ],
        ),
        (
            toward("h1", h0="timed out", h2="timed out", h3="Connection refused"),
            [
                "host 'h1' cannot be reached from h0, h2 at 10.0.0.101:2222 (worker:1): timed out",
                "host 'h1' cannot be reached from h3 at 10.0.0.101:2222 (worker:1): Connection refused",
            ],
        ),
    ],
    ids=["cut off in each direction", "cut off from some", "several causes"],
)
def test_each_host_direction_and_cause_is_one_problem(
    failures: dict[tuple[str, str], str], expected: list[str]
) -> None:
    assert problems(connect_all(cluster_with(5), lambda *connection: failures.get(connection, ""))) == expected


def test_if_every_host_has_a_firewall_each_is_a_problem() -> None:
    results = problems(connect_all(cluster_with(48), lambda source, address: "timed out"))
    assert len(results) == 48
    assert results[0].startswith("host 'h1' cannot be reached from h0, h17, h33, h41 and 2 more at")


@pytest.mark.parametrize(
    ("seen", "where", "hint"),
    [
        (["10.9.2.3"], "10.9.2.3", "Set `address: 10.9.2.3` for beta in the spec."),
        (["fd00::9", "10.9.2.3"], "10.9.2.3 and fd00::9", "Set `address:` to a name that stands for all of these"),
    ],
)
def test_the_address_that_a_hosts_connections_come_from_is_to_be_in_the_spec(
    seen: list[str], where: str, hint: str
) -> None:
    sources = dict(zip(["10.0.0.1:2222", "10.0.0.3:2223"], seen, strict=False))
    inspectors = {host: FakeInspector(lambda _: {}, sources if host == "beta" else None) for host in HOSTS}
    results = check_connectivity(Cluster("demo", TOPOLOGY.hosts, "alpha"), TOPOLOGY, preflights(inspectors))
    (problem,) = [result for result in results if not result.is_ok]
    assert (problem.host, problem.severity) == ("beta", Severity.ERROR)
    expected = f"connections from beta come from {where}, not from 10.0.0.2: the other hosts refuse them"
    assert problem.result == expected
    assert problem.hint.startswith(hint)
    assert [result.host for result in results if result.is_ok] == ["alpha", "gamma"]


def test_one_port_of_each_host_that_is_not_up_is_to_answer() -> None:
    topology = cluster_with(3, tasks=2)
    inspectors = {host.name: FakeInspector(lambda _: {}) for host in topology.hosts}
    check_connectivity(Cluster("demo", topology.hosts, "h0"), topology, preflights(inspectors))
    assert len(inspectors["h0"].addresses) == 4
    assert sorted(inspectors["h0"].answered) == ["10.0.0.101:2222", "10.0.0.102:2222"]


def test_no_hint_for_a_host_that_connect_reaches_names_what_a_container_does_not_have() -> None:
    hosts = tuple(
        replace(host, tls_port=4433 + number, ssh=None, connect="enter {host}")
        for number, host in enumerate(TOPOLOGY.hosts)
    )
    pods = replace(TOPOLOGY, hosts=hosts)
    (refused,) = [
        each
        for each in connect_all(pods, lambda _, to: "refused" if to.startswith("10.0.0.3") else "")
        if not each.is_ok
    ]
    assert refused.result.startswith("host 'gamma' cannot be reached from alpha, beta at 10.0.0.3:2223 (worker:1)")
    assert "a network policy is probably blocking the connection: allow TCP from 10.0.0.1, 10.0.0.2" in refused.hint
    assert "to its port 2223 (" in refused.hint
    (cut,) = [
        each for each in connect_all(pods, lambda source, _: "lost" if source == "gamma" else "") if not each.is_ok
    ]
    assert cut.result == "host 'gamma' reaches none of the hosts that it tried (2): lost"
    assert "a network policy between gamma and alpha" in cut.hint
    (_, note, _) = firewall_rules(replace(pods, network=PRIVATE))
    assert "allow TCP from 10.0.0.1, 10.0.0.3 to its port 4434 (" in note.hint
    late = HostPreflight(HostReport("beta", python="python3", clock_offset=900.0))
    (clock,) = check_clock("beta", late, pods)
    assert not any(word in each.hint for each in (refused, cut, note, clock) for word in ("sudo", "iptables"))
    (clock,) = check_clock("beta", late, TOPOLOGY)
    assert "sudo timedatectl" in clock.hint


def test_if_large_packets_are_lost_the_mtu_is_to_be_compared() -> None:
    results = connect_all(cluster_with(4), lambda source, _: LARGE_PACKETS_LOST if source == "h3" else "")
    (problem,) = [result for result in results if not result.is_ok]
    assert problem.result.endswith("reaches none of the hosts that it tried (3): small packets pass, large ones do not")
    assert problem.hint.startswith("Compare the MTU of h3, h0, h1, h2 and of what is between them")
    pair = ("h3", "10.0.0.101:2222")
    results = connect_all(cluster_with(4), lambda *connection: LARGE_PACKETS_LOST if connection == pair else "")
    (problem,) = [result for result in results if not result.is_ok]
    assert problem.hint.startswith("Compare the MTU of h1, h3 and of what is between them")


def test_of_a_private_cluster_every_host_has_a_rule_for_its_firewall() -> None:
    hosts = tuple(replace(host, tls_port=4433 + number) for number, host in enumerate(TOPOLOGY.hosts))
    _, beta, _ = firewall_rules(replace(TOPOLOGY, network=PRIVATE, hosts=hosts))
    assert (beta.host, beta.severity, beta.is_ok) == ("beta", Severity.NOTE, True)
    assert beta.result == "the other hosts connect to its port 4434 alone"
    assert "`sudo iptables -I INPUT -p tcp -s 10.0.0.1,10.0.0.3 --dport 4434 -j ACCEPT`" in beta.hint
    assert firewall_rules(replace(TOPOLOGY, hosts=hosts)) == []
    _, beta, _ = firewall_rules(
        replace(TOPOLOGY, network=PRIVATE, hosts=(replace(hosts[0], address="fd00::1"), *hosts[1:]))
    )
    assert "iptables -I INPUT -p tcp -s 10.0.0.3 --dport 4434 " in beta.hint
    assert "`sudo ip6tables -I INPUT -p tcp -s fd00::1 --dport 4434 -j ACCEPT`" in beta.hint


_AWAY = HostPreflight(problems=[("reach", HostUnreachableError("alpha", "timed out"))])
_LACKS = HostPreflight(problems=[("host", ClusterError("no TensorFlow", exit_code=ExitCode.USAGE))])


def test_a_check_that_fails_while_another_command_changes_the_cluster_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the checks of `doctor` would find a firewall where an `up` starts tasks."""
    attempts: list[FakeInspector] = []

    def observe(*arguments: object, **named: object) -> dict[str, HostPreflight]:
        is_first = not attempts
        attempts.append(
            FakeInspector(lambda addresses: dict.fromkeys(addresses, "Connection refused") if is_first else {})
        )
        attempts[-1].is_changed = is_first
        return preflights(dict.fromkeys(HOSTS, attempts[-1]))

    monkeypatch.setattr("tfcluster.client.preflight.preflight.observe_hosts", observe)
    results, code = check_hosts(TOPOLOGY)
    assert (code, problems(results), len(attempts)) == (ExitCode.DONE, [], 2)


@pytest.mark.parametrize(
    ("alpha", "beta", "code"),
    [
        (None, None, ExitCode.DONE),
        (None, _LACKS, ExitCode.FAILED),
        (_AWAY, None, ExitCode.UNREACHABLE),
        (_AWAY, _LACKS, ExitCode.UNREACHABLE),
    ],
)
def test_the_exit_code_of_doctor(
    alpha: HostPreflight | None, beta: HostPreflight | None, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = preflights({host.name: FakeInspector(lambda _: {}) for host in TOPOLOGY.hosts})
    hosts.update({host: each for host, each in (("alpha", alpha), ("beta", beta)) if each is not None})
    monkeypatch.setattr("tfcluster.client.preflight.preflight.observe_hosts", lambda *arguments, **named: hosts)
    results, found = check_hosts(TOPOLOGY)
    assert found is code, [result.text for result in results]


def test_a_single_host_is_not_checked_for_connectivity() -> None:
    inspector = FakeInspector(lambda _: {})
    cluster = Cluster("demo", TOPOLOGY.hosts, "alpha")
    assert check_connectivity(cluster, TOPOLOGY, preflights({"alpha": inspector})) == []
    assert inspector.addresses == []


PRIVATE_HOSTS = ClusterTopology(
    "demo", "cluster.yaml", PRIVATE, (), hosts=(Host("a", "10.0.0.1"), Host("b", "10.0.0.2"))
)


@pytest.fixture
def _state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_state_home", tmp_path)


def lacking(certificates: dict[str, Certificate | None]) -> list[str]:
    facts = {
        host: CertificateFacts(each.authority, each.until) if each else None for host, each in certificates.items()
    }
    hosts = {
        host: HostPreflight(inspector=FakeInspector(lambda _: {}), certificate=fact) for host, fact in facts.items()
    }
    return hosts_without_certificate(PRIVATE_HOSTS, hosts)


def test_a_certificate_is_valid_if_clocks_differ_by_a_day_and_becomes_a_file_and_back() -> None:
    certificate = Authority.create("demo").issue("a")
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    for text in (certificate.certificate, certificate.authority):
        valid = x509.load_pem_x509_certificate(text.encode())
        assert valid.not_valid_before_utc < now - day
        assert valid.not_valid_after_utc > now + day
    certificate = Authority.create("demo").issue("a")
    assert Certificate.from_pem(certificate.to_pem(), certificate.until) == certificate
    assert certificate.key not in repr(certificate)


@pytest.mark.usefixtures("_state_home")
def test_a_host_gets_a_certificate_when_it_has_none_or_none_of_this_authority() -> None:
    assert lacking({"a": None, "b": None}) == ["a", "b"]
    own = issue_certificates("demo", ["a", "b"])
    assert stat.S_IMODE(authority_path("demo").stat().st_mode) == 0o600
    assert lacking(dict(own)) == []
    later = issue_certificates("demo", ["b"])
    assert later["b"].authority == own["a"].authority
    assert lacking({"a": own["a"], "b": Authority.create("demo").issue("b")}) == ["b"]
    year = time.time() + 365 * 86400
    until = {"a": replace(own["a"], until=year - 3600), "b": replace(later["b"], until=year + 3600)}
    assert lacking(dict(until)) == ["a"], "in the last year it gets another one"


@pytest.mark.usefixtures("_state_home")
def test_an_authority_that_others_may_have_written_is_not_used() -> None:
    issue_certificates("demo", ["a"])
    authority_path("demo").chmod(0o620)
    with pytest.raises(ClusterError, match="another account may have written this file"):
        issue_certificates("demo", ["b"])
    if os.geteuid() == 0:
        authority_path("demo").chmod(0o600)
        os.chown(authority_path("demo"), 12345, 12345)
        with pytest.raises(ClusterError, match="another account may have written this file"):
            issue_certificates("demo", ["b"])
