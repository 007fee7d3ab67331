"""Hosts in a spec: secrets, addresses, and what is wrong with hostfiles; test_layouts.py has what a spec may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.base import Secret
from tfcluster.spec.hosts import host_for_address
from tfcluster.spec.load import load_spec, parse_spec
from tfcluster.spec.schema import Spec
from tfcluster.spec.variables import SpecEnvironment

JOBS = "jobs: {a: {tasks: 1}}\n"


def spec_of(text: str) -> Spec:
    return parse_spec(text, "c.yaml", "c")


def test_a_range_without_quotes_is_explained() -> None:
    with pytest.raises(ClusterError) as caught:
        spec_of(JOBS + "hosts: [lab[1-3], other]")
    assert caught.value.message.startswith("c.yaml:2:12: not valid YAML: ")
    assert caught.value.message.endswith('; write the range in quotes: "lab[1-3]"')


def test_a_secret_is_not_printed() -> None:
    job = spec_of("jobs: {a: {tasks: 1, env: {A: plain, B: {secret: xyzzy}}}}").jobs["a"]
    assert job.env == {"A": "plain", "B": Secret(secret="xyzzy")}
    assert (job.variables(), job.secrets()) == ({"A": "plain", "B": "xyzzy"}, ("B",))
    assert "xyzzy" not in repr(job) + str(job)


def test_an_address_is_resolved_to_the_host_with_the_address_or_the_name() -> None:
    addresses = {"alpha": "10.0.0.1", "beta": "beta.example.org", "gamma": "fd00::1"}
    written = ("alpha", "10.0.0.1", "beta.example.org", "Beta.Example.org", "fd00:0:0::1", "10.0.0.2", "localhost")
    assert [host_for_address(each, addresses) for each in written] == [
        *("alpha", "alpha", "beta", "beta", "gamma", None, None)
    ]


HOSTFILES = {
    "alpha\n lab[3-1] slots=2": ["2:2: expected a range of numbers such as [1-4] or [01-04,07]"],
    "alpha slots=2\nbeta gamma\n": ["2:1: expected a host such as alpha, alpha slots=2 or alpha:2"],
    "alpha slots=2 port=2": ["1:15: this is for ssh; name the hosts under hosts: to say how ssh reaches them, or set "
                                "it in ~/.ssh/config"],
    "alpha:2222\nbeta:4 ifname=eth0\nfd00::1": [
        "1:6: expected slots from 1 to 1000; a port is for ssh: set it in ~/.ssh/config",
        "2:8: expected slots or max_slots", "3:1: expected the name of a host"],
    "  tf@alpha": ["1:3: expected the name of a host; "
                   "name the hosts under hosts: to say how ssh reaches them"],
    "slots slots=0\nbeta slots=x": ["1:7: expected slots from 1 to 1000",
                                    "2:6: expected slots from 1 to 1000"],
    "alpha:2 slots=4": ["1:9: the slots are given twice"],
    "alpha slots=2 max_slots=0": ["1:15: expected slots from 1 to 1000"],
    "alpha slots=0 max_slots=4": ["1:7: expected slots from 1 to 1000"],
    "# none\n": ["1:1: the file names no host"],
    "#" * ((1 << 20) + 1): ["1:1: the file is larger than 1 MiB"],
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTFILES, ids=lambda text: text[:10])
def test_an_error_of_a_hostfile_has_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts.txt").write_text(text)
    file = tmp_path / "c.yaml"
    file.write_text("hostfile: hosts.txt\njobs: {a: {tasks: 1, hosts: [gamma]}}\n")
    with pytest.raises(ClusterError) as caught:
        load_spec(file)
    assert caught.value.message.splitlines() == [f"{tmp_path / 'hosts.txt'}:{line}" for line in HOSTFILES[text]]


def test_problems_of_a_hostfile_and_of_the_spec_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("localhost\nalpha\n")
    file = tmp_path / "c.yaml"
    file.write_text("hostfile: hosts.txt\njobs: {a: {tasks: 0, hosts: [gamma]}, b: ['gamma:1']}\nlease: -1\n")
    with pytest.raises(ClusterError) as caught:
        load_spec(file)
    assert caught.value.message.splitlines() == [
        f"{file}:1:11: hosts.localhost: the other hosts cannot connect to localhost; "
        "give it an address: that they can connect to, under hosts:",
        f"{file}:2:19: jobs.a.tasks: must be 1 or more, found 0",
        f"{file}:2:30: jobs.a.hosts[0]: no host has the name 'gamma'; the hosts are localhost, alpha",
        f"{file}:2:43: jobs.b[0]: no host has the name or the address 'gamma'; the hosts are localhost, alpha",
        f"{file}:3:8: lease: must be more than 0, found -1",
    ]


def test_without_a_number_the_nodes_are_those_of_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    for text in ("slurm:", "slurm: {}"):
        assert [*(spec_of(f"{text}\n{JOBS}").hosts or ())] == ["node0", "node1", "node2"]
    assert [*(spec_of("slurm: {nodes: 2}\n" + JOBS).hosts or ())] == ["node0", "node1"]
    four = "slurm: {nodes: 4}\n" + JOBS
    with pytest.raises(ClusterError) as caught:
        spec_of(four)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "c.yaml:1:16: slurm.nodes: Slurm job 4711, which SLURM_JOB_ID names, has 3; `env -u SLURM_JOB_ID" in (
        caught.value.message
    )
    whole = parse_spec(four, "c.yaml", "c", SpecEnvironment(allocation={}))
    assert len(whole.hosts or ()) == 4, "`validate` does not depend on where it is typed"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert [*(spec_of("slurm: {}\n" + JOBS).hosts or ())] == ["node0"]
