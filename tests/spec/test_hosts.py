"""Hosts in a spec: how they are named, what their keys may say, and what is read from a hostfile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster.errors import ClusterError
from tfcluster.spec.base import Secret
from tfcluster.spec.hosts import HostSpec, host_for_address
from tfcluster.spec.load import load_spec, parse_spec
from tfcluster.spec.schema import Spec

JOBS = "jobs: {a: {tasks: 1}}\n"


def spec_of(text: str) -> Spec:
    return parse_spec(text, "c.yaml", "c")


def test_every_key_of_a_host_is_read() -> None:
    spec = spec_of(
        JOBS
        + """
hosts:
  localhost: {address: "fd00::1", env: {A: b}, slots: 2}
  alpha: {address: 10.0.0.11, ssh: tf@alpha, python: /opt/tf/bin/python, state: /scratch/tf, setup: [echo a, "b\\nc"]}
  beta.example.org:
  10.0.0.13:
"""
    )
    assert spec.hosts == {
        "localhost": HostSpec(address="fd00::1", env={"A": "b"}, slots=2),
        "alpha": HostSpec(
            address="10.0.0.11",
            ssh="tf@alpha",
            python="/opt/tf/bin/python",
            state="/scratch/tf",
            setup=("echo a", "b\nc"),
        ),
        "beta.example.org": HostSpec(),
        "10.0.0.13": HostSpec(),
    }
    assert spec.addresses() == {
        "localhost": "fd00::1",
        "alpha": "10.0.0.11",
        "beta.example.org": "beta.example.org",
        "10.0.0.13": "10.0.0.13",
    }
    assert Spec.model_validate(spec.model_dump()) == spec


def test_ranges_name_several_hosts_and_one_without_quotes_is_explained() -> None:
    assert spec_of(JOBS + "hosts: ['lab[1-2]', x]").hosts == {"lab1": HostSpec(), "lab2": HostSpec(), "x": HostSpec()}
    assert list(spec_of(JOBS + "hosts:\n- lab[09-10,12].de,x").hosts or ()) == ["lab09.de", "lab10.de", "lab12.de", "x"]
    spec = spec_of(
        "hosts:\n  r[1-2]n[1-2]: {python: /opt/tf/bin/python}\n  lab[1-2]:\n"
        "jobs:\n  a: {tasks: 4, hosts: ['r1n[1-2]', lab2]}\n"
    )
    assert spec.hosts == {
        **{f"r{rack}n{node}": HostSpec(python="/opt/tf/bin/python") for rack in (1, 2) for node in (1, 2)},
        "lab1": HostSpec(),
        "lab2": HostSpec(),
    }
    assert spec.jobs["a"].hosts == ("r1n1", "r1n2", "lab2")
    with pytest.raises(ClusterError) as caught:
        spec_of(JOBS + "hosts: [lab[1-3], other]")
    assert caught.value.message.startswith("c.yaml:2:12: not valid YAML: ")
    assert caught.value.message.endswith('; write the range in quotes: "lab[1-3]"')


def test_localhost_alone_needs_no_address_and_a_lease_is_in_seconds() -> None:
    spec = spec_of("hosts: [localhost]\njobs: {a: ['127.0.0.2:1', 'localhost:2']}\nlease: 600")
    assert spec.addresses() == {"localhost": "localhost"}
    assert (spec.lease, spec_of(JOBS).lease) == (600, None)


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


def test_braces_in_connect_that_have_no_name_are_for_what_it_runs() -> None:
    connect = "sh -c 'exec docker exec -i $(docker ps -qf name={host} --format {{.ID}}) $${A} { :; } {a,b} {}'"
    hosts = spec_of(JOBS + f'hosts: {{alpha: {{connect: "{connect}"}}}}').hosts
    assert hosts is not None
    assert hosts["alpha"].connect == connect.replace("$$", "$")


def test_without_hosts_a_job_can_only_refer_to_localhost_and_tasks_on_different_hosts_may_have_one_port() -> None:
    assert spec_of("jobs: {a: {tasks: 1, hosts: [localhost]}}").jobs["a"].hosts == ("localhost",)
    spec = spec_of("hosts: [alpha, beta]\njobs: {a: ['alpha:2222', 'beta:2222']}")
    assert spec.placement_hosts(spec.jobs["a"]) == ("alpha", "beta")


def test_a_hostfile_may_be_in_the_notation_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("lab[01-03,07],gpu[1-2] slots=2\nlab03\n")
    (tmp_path / "c.yaml").write_text(JOBS + "hostfile: hosts.txt\n")
    slots = {name: host.slots for name, host in (load_spec(tmp_path / "c.yaml").hosts or {}).items()}
    assert slots == {"lab01": 2, "lab02": 2, "lab03": 3, "lab07": 2, "gpu1": 2, "gpu2": 2}


def test_hostfiles_of_all_kinds_of_mpi_are_read(tmp_path: Path) -> None:
    lines = {
        **{"a slots=2 max_slots=4": 2, "b max-slots=4 slots=3": 3, "c slots_max = 5": 5, "d cpu=2": 2, "e count=2": 2},
        **{"f": 1, "g:4": 4, "h[1-2]:3": 3, "10.0.0.3:2": 2},
    }
    (tmp_path / "hosts.txt").write_text("\n".join(lines))
    (tmp_path / "c.yaml").write_text(JOBS + "hostfile: hosts.txt\n")
    slots = [host.slots for host in (load_spec(tmp_path / "c.yaml").hosts or {}).values()]
    assert slots == [2, 3, 5, 2, 2, 1, 4, 3, 3, 2]


def test_a_hostfile_names_hosts_and_their_slots(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text(
        "\ufeff# mine\nalpha slots=2\n\n  beta   # the old one\r\n10.0.0.3 slots = 4\nbeta slots=2\n"
    )
    file = tmp_path / "c.yaml"
    file.write_text(JOBS + "hostfile: hosts.txt\n")
    spec = load_spec(file)
    assert spec.hosts == {"alpha": HostSpec(slots=2), "beta": HostSpec(slots=3), "10.0.0.3": HostSpec(slots=4)}
    assert spec.hostfile is None
    assert Spec.model_validate(spec.model_dump()) == spec


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
