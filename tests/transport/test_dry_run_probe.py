"""The dry-run probe: a process that examines a host without changing anything, and its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import mostly_slow, wait_for
from tests.core.clusters import topology_of
from tests.hosts import HERE, SshHosts
from tests.transport.conftest import TransportFactory
from tests.transport.test_examine import problems, python
from tfcluster.protocol.api.cluster import ReachReply, ReachRequest
from tfcluster.transport.provision import code_bundle
from tfcluster.transport.session import start_local_probe

TOPOLOGY = topology_of("name: demo\nhosts: {h0: {address: 127.0.0.1}}\njobs: {worker: {tasks: 2}}\n")


def files(hosts: SshHosts) -> list[Path]:
    return sorted(path for user in ("h0", HERE) for path in hosts.home(user).rglob("*"))


def test_a_probe_has_one_connection_of_its_own(hosts: SshHosts, make_transport: TransportFactory) -> None:
    before = files(hosts)
    report, probe = make_transport().probe()
    assert probe is not None
    assert (problems(report), report.unexamined, report.python) == ([], (), sys.executable)
    assert report.shipped_bytes == len(code_bundle())
    assert abs(report.clock_offset) <= report.clock_error + 0.001
    reply = probe.prepare(TOPOLOGY, listens=True)
    assert (reply.problems, len(reply.allocation.ports)) == ((), 2)
    port = min(reply.allocation.ports.values())
    reached = probe.reach(ReachRequest((f"127.0.0.1:{port}", "127.0.0.1:1"), 5.0, (f"127.0.0.1:{port}",)))
    assert reached == ReachReply({"127.0.0.1:1": "Connection refused"})
    assert len(hosts.run("h0", "ss", "-Htn", "state", "established", "sport", "=", ":22").splitlines()) == 1
    assert files(hosts) == before
    probe.close()
    assert not hosts.processes()
    assert files(hosts) == before


def test_a_lost_connection_leaves_nothing(hosts: SshHosts, make_transport: TransportFactory) -> None:
    before = files(hosts)
    _, probe = make_transport().probe()
    assert probe is not None
    probe.prepare(TOPOLOGY, listens=True)
    hosts.kill("h0")
    try:
        wait_for(lambda: not hosts.processes())
        assert files(hosts) == before
    finally:
        hosts.start("h0")
        probe.close()


def test_a_process_on_this_machine_ends_with_the_session(hosts: SshHosts) -> None:
    before = files(hosts)
    probe = start_local_probe("demo", "h0")
    assert hosts.processes()
    assert probe.prepare(TOPOLOGY, listens=False).problems == ()
    probe.close()
    assert not hosts.processes()
    assert files(hosts) == before


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("-1", None),
        ("99", "env of worker:0: CUDA_VISIBLE_DEVICES=99 names "),
        ("{secret: '99'}", None),
    ],
)
def test_a_list_of_gpus_in_the_spec_is_checked_and_named(value: str, problem: str | None) -> None:
    """A secret is neither sent nor checked."""
    probe = start_local_probe("demo", "h0")
    jobs = "{worker: {tasks: 1, env: {CUDA_VISIBLE_DEVICES: %s}}}" % (value if "{" in value else f"'{value}'")
    reply = probe.prepare(
        topology_of(f"name: demo\nhosts: {{h0: {{address: 127.0.0.1}}}}\njobs: {jobs}\n"), listens=False
    )
    probe.close()
    messages = [failure.error.message for failure in reply.problems]
    if problem is None:
        assert messages == []
    else:
        assert messages[0].startswith(problem)


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        [
            "python3; touch {marker}",
            'python3 -c \'open("{marker}", "w")\'',
            "$(touch {marker})",
            "`touch {marker}`",
            "/x' ; touch {marker} ; '",
            "/x\\' ; touch {marker} ; \\'",
            "a=1 touch {marker}",
            "~root/x;touch {marker}",
            "!touch {marker}",
            "touch\t{marker}",
        ],
        fast=["python3; touch {marker}", "$(touch {marker})", "/x' ; touch {marker} ; '"],
    ),
)
def test_a_python_is_one_word_for_the_shell(make_transport: TransportFactory, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    interpreter = name.format(marker=marker)
    report, probe = make_transport(python=interpreter).probe()
    assert probe is None
    ((message, _),) = problems(report)
    assert message.startswith(f"host 'h0': there is no {interpreter} to run")
    assert not marker.exists()


def test_variables_of_the_spec_are_not_set_but_determine_the_folders_and_the_gpus(
    hosts: SshHosts, make_transport: TransportFactory, tmp_path: Path
) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text("raise SystemExit('imported')\n")
    state = tmp_path / "state"
    env = {"PYTHONPATH": str(tmp_path), "LD_PRELOAD": "/x", "XDG_STATE_HOME": str(state), "CUDA_VISIBLE_DEVICES": "3,5"}
    transport = make_transport(env=env)
    report, probe = transport.probe()
    assert probe is not None
    assert report.unexamined == ("env: PYTHONPATH, LD_PRELOAD: not set for this, so what that changes is not checked",)
    (pid,) = (pid for pid, words in hosts.processes().items() if "session=json" in words and " -c " in words)
    variables = Path(f"/proc/{pid}/environ").read_bytes()
    assert not [name for name in (b"PYTHONPATH", b"LD_PRELOAD", bytes(state)) if name in variables]
    jobs = "name: demo\nhosts: {h0: {address: 127.0.0.1}}\njobs: {worker: {tasks: 1, gpus: 2}}\n"
    (failure,) = probe.prepare(topology_of(jobs), listens=False).problems
    assert failure.error.message.startswith("environment of h0: CUDA_VISIBLE_DEVICES=3,5 names ")
    (state / "tfcluster").mkdir(parents=True)
    (state / "tfcluster" / transport.cluster).touch()  # so no folder can be made there
    reply = probe.prepare(TOPOLOGY, listens=False)
    assert [failure.error.message for failure in reply.problems] == [
        f"{state}/tfcluster/{transport.cluster}/h0: cannot make the state folder: "
        f"{state}/tfcluster/{transport.cluster} is not a folder"
    ]
    probe.close()


def test_a_home_that_cannot_be_written_is_reported(hosts: SshHosts, make_transport: TransportFactory) -> None:
    cache = hosts.home("h1") / "cache" / "tfcluster"
    cache.touch()
    try:
        report, probe = make_transport("h1").probe()
        assert probe is not None
        probe.close()
        assert [message for message, _ in problems(report)] == [
            f"host 'h1': cannot keep tfcluster's code: {cache} is not a folder"
        ]
    finally:
        cache.unlink()


@pytest.mark.parametrize("has_setup", [False, True])
def test_what_a_python_lacks_is_a_problem_unless_setup_may_bring_it(
    make_transport: TransportFactory, tmp_path: Path, has_setup: bool
) -> None:
    bare = python(tmp_path / "bare", f'exec {sys.executable} -S "$@"')
    setup = (f"touch {tmp_path}/marker",) if has_setup else ()
    report, probe = make_transport(python=bare, setup=setup).probe()
    assert probe is None
    missing = ["TensorFlow is not installed for the agent's Python"]
    if not has_setup:
        assert [message for message, _ in problems(report)] == [f"host 'h0': {what}" for what in missing]
        return
    assert problems(report) == []
    assert report.unexamined == (
        *(f"{what}; `setup:` might change that: not checked" for what in missing),
        "`setup:` has not been run there: what it changes is not checked",
    )
    assert not (tmp_path / "marker").exists()


def test_once_setup_has_been_run_what_is_missing_is_a_problem(make_transport: TransportFactory, tmp_path: Path) -> None:
    bare = python(tmp_path / "bare", f'exec {sys.executable} -S "$@"')
    transport = make_transport(python=bare, setup=("true",))
    transport.examine()
    report, _ = transport.probe()
    assert len(problems(report)) == 1
    assert report.unexamined == ()


@pytest.mark.parametrize("program", ["echo Unknown option: -I >&2; exit 2", "exit 3"])
def test_a_python_that_does_not_run_is_reported(make_transport: TransportFactory, tmp_path: Path, program: str) -> None:
    broken = python(tmp_path / "broken", program)
    ((message, hint),) = problems(make_transport(python=broken).probe()[0])
    assert message.startswith(f"host 'h0': {broken} ended with exit code {program[-1]} before it answered as")
    assert "correct `python:` of this host in the spec" in hint
    report, _ = make_transport(python=str(tmp_path / "broken"), setup=("true",)).probe()
    assert problems(report) == []
    assert report.unexamined[0].endswith("; `setup:` might change that: not checked")
