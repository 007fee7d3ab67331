"""The certificates of a private cluster's hosts: how long they are valid, and when a host gets another one."""

from __future__ import annotations

import datetime
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from tfcluster import paths
from tfcluster.client.preflight.certificates import Authority, issue_certificates
from tfcluster.client.preflight.checks import AgentInspector, HostPreflight
from tfcluster.client.preflight.preflight import hosts_without_certificate
from tfcluster.core.forwarding import Certificate, CertificateFacts
from tfcluster.core.hosts import Host
from tfcluster.core.topology import PRIVATE, ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.paths import authority_path

TOPOLOGY = ClusterTopology("demo", "cluster.yaml", PRIVATE, (), hosts=(Host("a", "10.0.0.1"), Host("b", "10.0.0.2")))


class NoInspector(AgentInspector):
    """An agent that is not asked."""

    def __init__(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_state_home", tmp_path)


def lacking(certificates: dict[str, Certificate | None]) -> list[str]:
    hosts = {
        host: HostPreflight(
            inspector=NoInspector(), certificate=CertificateFacts(each.authority, each.until) if each else None
        )
        for host, each in certificates.items()
    }
    return hosts_without_certificate(TOPOLOGY, hosts)


def test_clocks_may_differ_by_a_day() -> None:
    certificate = Authority.create("demo").issue("a")
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.timezone.utc)
    for text in (certificate.certificate, certificate.authority):
        valid = x509.load_pem_x509_certificate(text.encode())
        assert valid.not_valid_before_utc < now - day
        assert valid.not_valid_after_utc > now + day


def test_a_host_gets_a_certificate_when_it_has_none_or_none_of_this_authority() -> None:
    assert lacking({"a": None, "b": None}) == ["a", "b"]
    own = issue_certificates("demo", ["a", "b"])
    assert stat.S_IMODE(authority_path("demo").stat().st_mode) == 0o600
    assert lacking(dict(own)) == []
    later = issue_certificates("demo", ["b"])
    assert later["b"].authority == own["a"].authority
    assert lacking({"a": own["a"], "b": Authority.create("demo").issue("b")}) == ["b"]
    assert lacking({"a": replace(own["a"], until=0.0), "b": later["b"]}) == ["a"]


def test_a_certificate_becomes_a_file_and_back() -> None:
    certificate = Authority.create("demo").issue("a")
    assert Certificate.from_pem(certificate.to_pem(), certificate.until) == certificate
    assert certificate.key not in repr(certificate)


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
