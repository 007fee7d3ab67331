"""Names that only the system's resolver knows, and what `doctor` and `up` say of hosts that cannot connect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import COMMAND, make_sandbox, wait_for
from tests.hosts import over

#: A machine of its own name, which no file and no name server knows, but a module of the C library does.
_NAMED = 'hostname alpha.local && mount --bind "$0" /etc/nsswitch.conf && exec "$@"'


@pytest.mark.slow
@pytest.mark.needs("own-name")
def test_a_name_that_only_the_systems_resolver_knows(tmp_path: Path) -> None:
    switch = tmp_path / "nsswitch.conf"
    switch.write_text("passwd: files\nhosts: files myhostname dns\n")
    command = ("unshare", "--uts", "--mount", "sh", "-c", _NAMED, str(switch), *COMMAND)
    with make_sandbox(tmp_path, command) as named:
        named("up", named.spec("name: named\nhosts: {localhost: {address: alpha.local}}\njobs: {worker: {tasks: 2}}\n"))
        assert {address.partition(":")[0] for address in named.tasks("address").values()} == {"alpha.local"}
        named("run", "pi", "--samples", "1e5")


_NAMES = ("alpha", "beta")
_JOBS = "jobs: {worker: {tasks: 4, hosts: [alpha, beta]}}\n"


@pytest.mark.slow
def test_hosts_that_cannot_work_together_are_told_why_before_anything_starts(
    needs_network: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections of one come from an address that the spec does not name; then large packets are lost."""
    monkeypatch.setenv("TEST_SETTINGS", json.dumps({"CONNECTIVITY_ANSWER_SECONDS": 3.0}))
    with over(tmp_path, *_NAMES, has_sshd=False) as two:
        text = two.text(_NAMES, _JOBS)
        two.spec(text)
        alpha, beta = (two.network.network[name] for name in _NAMES)
        beta.ip("address", "add", "10.9.2.3/32", "dev", "lo")
        beta.ip("route", "add", alpha.ipv4, "dev", "eth0", "src", "10.9.2.3")
        alpha.ip("route", "add", "10.9.2.3", "dev", "eth0")
        elsewhere = f"connections from beta come from 10.9.2.3, not from {beta.ipv4}: the other hosts refuse them"
        told = {(check["host"], check["result"]) for check in two.json("doctor", code=1)["checks"] if not check["ok"]}
        assert told == {("beta", elsewhere)}
        refused = two("up", code=1).stderr
        assert elsewhere in refused
        assert "Set `address: 10.9.2.3` for beta in the spec." in refused
        two.spec(text.replace(beta.ipv4, "10.9.2.3"))
        two.network.network.narrow("alpha", 1200)
        failed = [check for check in two.json("doctor", code=1)["checks"] if not check["ok"]]
        assert all(check["result"].endswith(": small packets pass, large ones do not") for check in failed), failed
        assert "Compare the MTU of alpha, beta and of what is between them" in two("up", code=1).stderr
        two.network.network.narrow("alpha", 1500)
        two("up")
        assert two.status()["state"] == "running"
        two("down")


_THREE = ("alpha", "beta", "delta")
_ON_EACH = "jobs: {worker: {tasks: 3, hosts: [alpha, beta, delta]}}\n"


@pytest.mark.slow
def test_a_host_that_is_cut_off_from_several_is_one_problem_in_each_direction(
    needs_network: None, tmp_path: Path
) -> None:
    with over(tmp_path, *_THREE, has_sshd=False) as three:
        three.spec(three.text(_THREE, _ON_EACH))
        *others, delta = map(three.network.address, _THREE)
        with three.network.network["delta"].losing(*others):
            told = three.json("doctor", code=1)["checks"]
            lines = three("up", code=1).stderr.splitlines()
        wait_for(lambda: not three.leftovers())
    failed = [(check["host"], check["check"]) for check in told if not check["ok"]]
    assert failed == [("delta", "network")] * 2
    assert {check["host"] for check in told if check["check"] == "network"} == {"delta"}
    found = [line for line in lines if line.startswith("  host ")]
    first, second = sorted(found)
    assert first.startswith(f"  host 'delta' cannot be reached from alpha, beta at {delta}:")
    assert second.startswith("  host 'delta' reaches none of the hosts that it tried (2): ")
    assert "error: Nothing was started; 2 problems found:" in lines, lines
