"""The preflight of `up` and `doctor`: what it checks, who connects to whom and gets a certificate, and what it says."""

from __future__ import annotations

import datetime
import os
import stat
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography import x509

from tests.core.clusters import topology_of
from tfcluster import paths
from tfcluster.client.preflight.certificates import Authority, issue_certificates
from tfcluster.client.preflight.checks import (
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
    choose_peers,
    firewall_rules,
    hosts_without_certificate,
)
from tfcluster.client.up import print_warnings
from tfcluster.core.forwarding import Certificate, CertificateFacts
from tfcluster.core.hosts import Host, OtherAccounts
from tfcluster.core.topology import PRIVATE, ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.paths import authority_path
from tfcluster.transport.remote_transport import HostReport

TOPOLOGY = topology_of(
    "name: demo\n"
    "hosts: {alpha: {address: 10.0.0.1}, beta: {address: 10.0.0.2}, gamma: {address: 10.0.0.3}}\n"
    "jobs:\n"
    "  ps: ['10.0.0.1:2222']\n"
    "  worker: ['10.0.0.2:2222', '10.0.0.3:2223']\n"
)
LOCAL = topology_of("jobs: {worker: {tasks: 1}}")


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


def test_of_a_private_cluster_every_host_has_a_rule_for_its_firewall() -> None:
    hosts = tuple(replace(host, tls_port=4433 + number) for number, host in enumerate(TOPOLOGY.hosts))
    private = replace(TOPOLOGY, network=PRIVATE, hosts=hosts)
    _, beta, _ = firewall_rules(private)
    assert (beta.host, beta.severity, beta.is_ok) == ("beta", Severity.NOTE, True)
    assert beta.result == "the other hosts connect to its port 4434 alone"
    assert "`sudo iptables -I INPUT -p tcp -s 10.0.0.1,10.0.0.3 --dport 4434 -j ACCEPT`" in beta.hint
    assert firewall_rules(replace(TOPOLOGY, hosts=hosts)) == []
    pods = replace(private, hosts=tuple(replace(host, connect="enter") for host in hosts))
    _, note, _ = firewall_rules(pods)
    assert "allow TCP from 10.0.0.1, 10.0.0.3 to its port 4434 (" in note.hint
    late = HostPreflight(HostReport("beta", python="python3", clock_offset=900.0))
    (clock,) = check_clock("beta", late, pods)
    assert not any(word in each.hint for each in (note, clock) for word in ("sudo", "iptables"))
    (clock,) = check_clock("beta", late, TOPOLOGY)
    assert "sudo timedatectl" in clock.hint
    _, beta, _ = firewall_rules(
        replace(TOPOLOGY, network=PRIVATE, hosts=(replace(hosts[0], address="fd00::1"), *hosts[1:]))
    )
    assert "iptables -I INPUT -p tcp -s 10.0.0.3 --dport 4434 " in beta.hint
    assert "`sudo ip6tables -I INPUT -p tcp -s fd00::1 --dport 4434 -j ACCEPT`" in beta.hint


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
    hosts = {host: HostPreflight(inspector=Mock(), certificate=fact) for host, fact in facts.items()}
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
