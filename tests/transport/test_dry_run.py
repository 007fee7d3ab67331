"""The dry examination of a host: setup commands are not run, and what they might change is said instead."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.hosts import HERE, SshHosts
from tests.transport.conftest import TransportFactory
from tests.transport.test_examine import problems, python
from tfcluster.client.preflight.checks import AgentInspector
from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.transport.remote_transport import HostReport

NOT_RUN = "`setup:` has not been run there: what it changes is not checked"


def examine(make_transport: TransportFactory, **host: object) -> HostReport:
    return make_transport(**host).examine(dry=True)


def state_of(hosts: SshHosts) -> list[Path]:
    return sorted(path for user in ("h0", HERE) for path in hosts.home(user).glob("state/tfcluster/*"))


def test_the_agent_and_the_link_end_with_the_check(hosts: SshHosts, make_transport: TransportFactory) -> None:
    before = state_of(hosts)
    transport = make_transport()
    report = transport.examine(dry=True)
    assert (problems(report), report.unexamined, report.python) == ([], (), sys.executable)
    assert report.has_packages
    inspector = AgentInspector(AgentClient(transport), dry=True)
    assert inspector.observe().observed is None
    inspector.close()
    assert state_of(hosts) == before
    transport.disconnect()
    wait_for(lambda: not hosts.processes())


@pytest.mark.parametrize(
    "name",
    ["python3; touch {marker}", "$(touch {marker})", "/x' ; touch {marker} ; '", "~root/x;touch {marker}"],
)
def test_a_python_is_one_word_for_the_shell(make_transport: TransportFactory, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    interpreter = name.format(marker=marker)
    report = examine(make_transport, python=interpreter)
    ((message, _),) = problems(report)
    assert message.startswith(f"host 'h0': there is no {interpreter} to run")
    assert not report.has_packages
    assert not marker.exists()


@pytest.mark.parametrize("has_setup", [False, True])
def test_code_that_cannot_be_kept_is_a_problem_unless_setup_may_change_that(
    hosts: SshHosts, make_transport: TransportFactory, has_setup: bool
) -> None:
    cache = hosts.home("h1") / "cache" / "tfcluster"
    shutil.rmtree(cache, ignore_errors=True)  # code that other tests have sent
    cache.touch()
    try:
        report = make_transport("h1", setup=("true",) if has_setup else ()).examine(dry=True)
    finally:
        cache.unlink()
    error = f"cannot keep tfcluster's code: [Errno 20] Not a directory: '{cache}/code'"
    if has_setup:
        assert problems(report) == []
        assert report.unexamined == (f"{error}; `setup:` might change that: not checked", NOT_RUN)
    else:
        assert [message for message, _ in problems(report)] == [f"host 'h1': {error}"]


@pytest.mark.parametrize("has_setup", [False, True])
def test_what_a_python_lacks_is_a_problem_unless_setup_may_bring_it(
    make_transport: TransportFactory, tmp_path: Path, has_setup: bool
) -> None:
    bare = python(tmp_path / "bare", f'exec {sys.executable} -S "$@"')
    setup = (f"touch {tmp_path}/marker",) if has_setup else ()
    report = examine(make_transport, python=bare, setup=setup)
    assert not report.has_packages
    missing = "TensorFlow is not installed for the agent's Python"
    if not has_setup:
        assert [message for message, _ in problems(report)] == [f"host 'h0': {missing}"]
        return
    assert problems(report) == []
    assert report.unexamined == (f"{missing}; `setup:` might change that: not checked", NOT_RUN)
    assert not (tmp_path / "marker").exists()


def test_once_setup_has_been_run_what_is_missing_is_a_problem(make_transport: TransportFactory, tmp_path: Path) -> None:
    bare = python(tmp_path / "bare", f'exec {sys.executable} -S "$@"')
    transport = make_transport(python=bare, setup=("true",))
    transport.examine()
    report = transport.examine(dry=True)
    assert len(problems(report)) == 1
    assert report.unexamined == ()


def test_a_host_without_problems_can_be_checked_before_its_setup_has_been_run(
    make_transport: TransportFactory, tmp_path: Path
) -> None:
    report = examine(make_transport, setup=(f"touch {tmp_path}/marker",))
    assert (problems(report), report.unexamined, report.has_packages) == ([], (NOT_RUN,), True)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("program", ["echo Unknown option: -c >&2; exit 2", "exit 3"])
def test_a_python_that_does_not_run_is_reported(make_transport: TransportFactory, tmp_path: Path, program: str) -> None:
    broken = python(tmp_path / "broken", program)
    ((message, hint),) = problems(examine(make_transport, python=broken))
    assert message.startswith(f"host 'h0': {broken} ended with exit code {program[-1]} before it answered as")
    assert "correct `python:` of this host in the spec" in hint
    report = examine(make_transport, python=broken, setup=("true",))
    assert problems(report) == []
    assert report.unexamined[0].endswith("; `setup:` might change that: not checked")
