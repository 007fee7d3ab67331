"""Hosts in a spec: how they are named, what their keys may say, and what jobs and addresses say of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.base import Secret
from tfcluster.spec.hosts import HostSpec, host_for_address
from tfcluster.spec.load import load_spec, parse_spec
from tfcluster.spec.schema import Spec

JOBS = "jobs: {a: {tasks: 1}}\n"


def spec_of(text: str) -> Spec:
    return parse_spec(text, "c.yaml", "c")


def refusal_of_nul() -> str:
    """Return what Python says of a path with a NUL, which differs between its versions."""
    with pytest.raises(ValueError, match="embedded null") as caught:
        os.stat("\0")
    return str(caught.value)


def problems_of(text: str) -> list[str]:
    with pytest.raises(ClusterError) as caught:
        spec_of(text)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value.message.splitlines()


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
    (problem,) = problems_of(JOBS + "hosts: [lab[1-3], other]")
    assert problem.startswith("c.yaml:2:12: not valid YAML: ")
    assert problem.endswith('; write the range in quotes: "lab[1-3]"')


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


ONE_LINE = {
    # hosts
    "hosts: {}": "2:8: hosts: must have at least one entry, found an empty mapping",
    "hosts: []": "2:8: hosts: expected names and values, found an empty list",
    "hosts: [!x alpha]": "2:9: hosts[0]: the tag !x has no meaning here; delete it",
    "hosts: alpha": "2:8: hosts: expected names and values, found the text 'alpha'",
    "hosts: {alpha: 10.0.0.1}": "2:16: hosts.alpha: expected the keys address, ssh, connect, python, shell, env, "
    "state, tls_port, setup, slots, found the text '10.0.0.1'",
    "hosts: {alpha: {adress: x}}": "2:17: hosts.alpha.adress: unknown key; did you mean 'address'?",
    **{
        f"hosts: ['{name}']": f"2:9: hosts.{name}: expected the name of a host to be letters, digits, _, . and -, "
        "and to start with a letter or digit"
        for name in ("-alpha", "tf@alpha", "../alpha", "lab[1-2")
    },
    "hosts: [alpha, beta, alpha]": "2:22: hosts[2]: this host is already at line 2, column 9; keep one of the two",
    "hosts: [7]": "2:9: hosts[0]: expected the name of a host, found 7",
    "hosts: [alpha: {ssh: x}]": "2:9: hosts[0]: expected the name of a host, found keys and values; "
    "write the hosts without dashes to give them keys",
    # ranges
    "hosts: ['lab[4-1]']": "2:9: hosts[0]: expected a range of numbers such as [1-4] or [01-04,07], found 'lab[4-1]'",
    "hosts: {'lab[a]': }": "2:9: hosts.lab[a]: expected a range of numbers such as [1-4] or [01-04,07], found 'lab[a]'",
    "hosts: ['lab[1-1001]']": "2:9: hosts[0]: expected at most 1000 hosts, found 'lab[1-1001]'",
    "hosts: ['lab[1-99][1-99]']": "2:9: hosts[0]: expected at most 1000 hosts, found 'lab[1-99][1-99]'",
    "hosts: ['lab[1-2]', lab2]": "2:21: hosts[2]: this host is already at line 2, column 9; keep one of the two",
    "hosts: {'lab[1-2]': , lab2: }": "2:23: hosts.lab2: this host is named twice; keep one of the two",
    "hosts: {'lab[1-1]': {slots: 0}}": "2:29: hosts.lab1.slots: must be 1 or more, found 0",
    # address
    "hosts: {alpha: {address: 10.0}}": "2:26: hosts.alpha.address: expected text, found 10.0; "
    'write it in quotes: "10.0"',
    **{
        f"hosts: {{alpha: {{address: '{address}'}}}}": "2:26: hosts.alpha.address: expected a host name or an IP "
        f"address, without a port, found the text '{address}'"
        for address in ("10.0.0.1:2222", "alpha:2222", "[fd00::1]", "10.0.0.256", "a b", "", "-x", "tf@alpha")
    },
    **{
        f"hosts: {{alpha: {{address: '{address}'}}}}": "2:26: hosts.alpha.address: expected an address that other "
        f"hosts can connect to, found the text '{address}'"
        for address in ("0.0.0.0", "::", "fe80::1%eth0")
    },
    # ssh, python, state, setup
    **{
        f"hosts: {{alpha: {{ssh: '{ssh}'}}}}": "2:22: hosts.alpha.ssh: expected a destination of ssh such as "
        f"user@host or a name of ~/.ssh/config, found the text '{ssh}'"
        for ssh in (
            *("-oProxyCommand=x", "tf@-oProxyCommand=x", "ssh://-oProxyCommand=x", "ssh://tf@-x:22"),
            *("a b", "a;b", "$(b)", "a`b`", "a|b", "tf&@a", "a<b", '"a"', "a{b"),
        )
    },
    "hosts: {alpha: {ssh: 'a\\b'}}": "2:22: hosts.alpha.ssh: expected a destination of ssh such as user@host or a name "
    "of ~/.ssh/config, found the text 'a\\\\b'",
    # connect
    **{
        f"hosts: {{alpha: {{connect: '{connect}'}}}}": "2:26: hosts.alpha.connect: expected a command such as docker "
        f"exec -i {{host}}, found the text '{connect}'"
        for connect in ("-x", "{host}", " ")
    },
    **{
        f"hosts: {{alpha: {{connect: 'docker exec -i {name}'}}}}": f"2:26: hosts.alpha.connect: {name} is not "
        "replaced; what is replaced is {host}, {address}, {command} and {terminal:OPTION}; write other braces with "
        "spaces inside"
        for name in ("{hosts}", "{terminal}", "{terminal:}", "{tty:-t}", "{host:x}")
    },
    "hosts: {alpha: {connect: 'docker exec -i{terminal:-t} {host}'}}": "2:26: hosts.alpha.connect: {terminal:-t} is "
    "not a word by itself; write spaces around it",
    "hosts: {alpha: {connect: 'docker \"exec'}}": "2:26: hosts.alpha.connect: expected words as a shell splits them: "
    "no closing quotation, found the text 'docker \"exec'",
    "hosts: {alpha: {ssh: a, connect: docker exec alpha}}": "2:17: hosts.alpha.ssh: connect: already says how "
    "the host is reached; keep one of the two",
    'hosts: {alpha: {ssh: "a\\nb"}}': "2:22: hosts.alpha.ssh: expected text of one line, found the text 'a\\nb'",
    'hosts: {alpha: {python: "a\\0b"}}': "2:25: hosts.alpha.python: expected text of one line, "
    "found the text 'a\\x00b'",
    **{
        f"hosts: {{alpha: {{python: '{python}'}}}}": "2:25: hosts.alpha.python: expected the name of a command such as "
        f"python3, or a path that begins with / or ~/, found the text '{python}'"
        for python in ("-c", "~tf/bin/python", "bin/python")
    },
    "hosts: {alpha: {python: ''}}": "2:25: hosts.alpha.python: expected text of one line, found the text ''",
    'hosts: {alpha: {state: "/a\\nb"}}': "2:24: hosts.alpha.state: expected text of one line, found the text '/a\\nb'",
    "hosts: {alpha: {state: scratch}}": "2:24: hosts.alpha.state: expected an absolute path, which begins with / "
    "or ~/, found the text 'scratch'",
    "hosts: {alpha: {setup: make}}": "2:24: hosts.alpha.setup: expected a list, found the text 'make'",
    "hosts: {alpha: {setup: [' ']}}": "2:25: hosts.alpha.setup[0]: expected a shell command, found the text ' '",
    "hosts: {alpha: {slots: 0}}": "2:24: hosts.alpha.slots: must be 1 or more, found 0",
    # env
    "hosts: {alpha: {env: {A: {secret: x}}}}": "2:26: hosts.alpha.env.A: a host has no secrets; "
    "write it in the env: of the jobs that require it",
    # localhost
    "hosts: {localhost: {ssh: x}}": "2:21: hosts.localhost.ssh: localhost is this machine and needs no ssh "
    "destination; give the host another name",
    "hosts: {localhost: {python: x}}": "2:21: hosts.localhost.python: on localhost it is the one that runs this "
    "command; delete this key",
    "hosts: {localhost: {shell: x}}": "2:21: hosts.localhost.shell: on localhost this command runs already, so it "
    "comes too late; type it before the command",
    "hosts: {alpha: {shell: ' '}}": "2:24: hosts.alpha.shell: expected a shell command, found the text ' '",
    "hosts: {localhost: {state: /x}}": "2:21: hosts.localhost.state: on localhost it is in XDG_STATE_HOME, where every "
    "command looks for it; set XDG_STATE_HOME",
    "hosts: {localhost: {setup: [x]}}": "2:21: hosts.localhost.setup: on localhost this command runs already, so it "
    "comes too late; run it yourself",
    "hosts: [localhost, alpha]": "2:9: hosts.localhost: the other hosts cannot connect to localhost; "
    "give it an address: that they can connect to, under hosts:",
    "hosts: {alpha: , beta: {address: '::1'}}": "2:34: hosts.beta: the other hosts cannot connect to ::1; "
    "give it an address: that they can connect to, under hosts:",
    "hosts: {alpha: {address: 'fd00::1'}, beta: {address: 'FD00:0::1'}}": "2:54: hosts.beta: it has the address "
    "FD00:0::1 of alpha",
    # lease
    "lease: 0": "2:8: lease: must be more than 0, found 0",
    "lease: 10m": "2:8: lease: expected a number, found the text '10m'",
    # hostfile
    "hostfile: nowhere": "2:11: hostfile: nowhere: no such file or directory",
    "hostfile: .": "2:11: hostfile: .: is a directory",
    "hostfile: [alpha]": "2:11: hostfile: expected text, found a list of 1",
    'hostfile: "a\\0"': f"2:11: hostfile: a\\x00: {refusal_of_nul()}",
    "hostfile: x\nhosts: [alpha]": "2:1: hostfile: hosts: already names the hosts; keep one of the two",
}


@pytest.mark.parametrize("text", ONE_LINE)
def test_an_error_of_hosts_has_one_line(text: str) -> None:
    assert problems_of(JOBS + text) == [f"c.yaml:{ONE_LINE[text]}"]


def test_braces_in_connect_that_have_no_name_are_for_what_it_runs() -> None:
    connect = "sh -c 'exec docker exec -i $(docker ps -qf name={host} --format {{.ID}}) $${A} { :; } {a,b} {}'"
    hosts = spec_of(JOBS + f'hosts: {{alpha: {{connect: "{connect}"}}}}').hosts
    assert hosts is not None
    assert hosts["alpha"].connect == connect.replace("$$", "$")


OF_JOBS = {
    "{tasks: 1, hosts: alpha}": "2:24: jobs.a.hosts: expected a list, found the text 'alpha'",
    "{tasks: 1, hosts: []}": "2:24: jobs.a.hosts: must have at least one entry, found an empty list",
    "{tasks: 1, hosts: [1]}": '2:25: jobs.a.hosts[0]: expected text, found 1; write it in quotes: "1"',
    "{tasks: 1, hosts: [alpha, gamma]}": "2:32: jobs.a.hosts[1]: no host has the name 'gamma'; "
    "the hosts are alpha, beta",
    "{tasks: 1, hosts: [10.0.0.1]}": "2:25: jobs.a.hosts[0]: no host has the name '10.0.0.1'; "
    "the hosts are alpha, beta",
    "{tasks: ['alpha:1'], hosts: [alpha]}": "2:27: jobs.a.hosts: the addresses of the tasks already name their "
    "hosts; delete it, or give the number of tasks",
    "['alpa:1']": "2:7: jobs.a[0]: no host has the name or the address 'alpa'; did you mean 'alpha'?",
    "['localhost:1']": "2:7: jobs.a[0]: no host has the name or the address 'localhost'; the hosts are alpha, beta",
    "['alpha:1', '10.0.0.1:1']": "2:18: jobs.a[1]: a:1 has the port of a:0, which is alpha:1; "
    "a TensorFlow server listens on every interface",
    "['alpha:1', 'alpha:1']": "2:18: jobs.a[1]: a:1 has the address alpha:1 of a:0",
}


@pytest.mark.parametrize("job", OF_JOBS)
def test_a_job_refers_to_existing_hosts(job: str) -> None:
    text = f"jobs:\n  a: {job}\nhosts: {{alpha: {{address: 10.0.0.1}}, beta: {{address: beta.example.org}}}}"
    assert problems_of(text) == [f"c.yaml:{OF_JOBS[job]}"]


def test_without_hosts_a_job_can_only_refer_to_localhost_and_tasks_on_different_hosts_may_have_one_port() -> None:
    assert spec_of("jobs: {a: {tasks: 1, hosts: [localhost]}}").jobs["a"].hosts == ("localhost",)
    assert problems_of("jobs: {a: {tasks: 1, hosts: [alpha]}}") == [
        "c.yaml:1:30: jobs.a.hosts[0]: no host has the name 'alpha'; name it under hosts:"
    ]
    spec = spec_of("hosts: [alpha, beta]\njobs: {a: ['alpha:2222', 'beta:2222']}")
    assert spec.placement_hosts(spec.jobs["a"]) == ("alpha", "beta")


SECRETS = ["{secret: 4711}", "{secret: }", "{secret: [xyzzy]}", "{secret: 12:34:56}", '{secret: "\\0xyzzy"}',
           "{secret: xyzzy, x: 1}", "{sekret: xyzzy}", "4711", "12:34:56", "!!int xyzzy", "2026-01-01", "[xyzzy]",
           "0x4711"]  # fmt: skip


@pytest.mark.parametrize("value", SECRETS)
def test_no_message_contains_the_value_of_a_variable(value: str) -> None:
    problems = problems_of(f"jobs: {{a: {{tasks: 1, env: {{A: {value}}}}}}}")
    assert all("jobs.a.env.A" in problem for problem in problems)
    assert not any(text in problem for problem in problems for text in ("xyzzy", "4711", "12:34", "2026-01"))


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
