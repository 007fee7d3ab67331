"""The first session with a host: the code that is sent to it, and the report about it, with all problems at once."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hosts import SshHosts
from tests.transport.conftest import TransportFactory, agents, begin
from tfcluster.errors import ClusterError
from tfcluster.transport.errors import HostUnreachableError
from tfcluster.transport.provision import code_bundle, code_hash
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX
from tfcluster.transport.remote_transport import HostReport


def problems(report: HostReport) -> list[tuple[str, str]]:
    assert not any(isinstance(problem, HostUnreachableError) for problem in report.problems)
    return [(problem.message, problem.hint) for problem in report.problems]


def code_of(hosts: SshHosts, name: str = "h0") -> Path:
    """Return the folder of the code that this test runs in a host's cache."""
    return hosts.home(name) / "cache" / "tfcluster" / "code" / code_hash()


def python(path: Path, program: str) -> str:
    """Write a program in the place of a Python, and return its path."""
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    return str(path)


def test_the_report_about_a_suitable_host(make_transport: TransportFactory) -> None:
    report = make_transport().examine()
    assert problems(report) == []
    assert (report.host, report.python) == ("h0", sys.executable)
    assert report.python_version == sys.version.split()[0]
    assert re.match(r"2\.\d+", report.tensorflow or "")
    assert report.free_bytes > 0
    assert abs(report.clock_offset) <= report.clock_error + 0.001  # it is the same clock


def activation(folder: Path, python: str) -> str:
    """Write what activates an environment, as conda does, and return the command for it."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(python)
    (folder / "activate").write_text(f'echo activating; PATH="{folder}/bin:$PATH"; export ACTIVATED="$1"\n')
    return f"source {folder}/activate tf"


def test_the_environment_of_the_python_is_activated(
    hosts: SshHosts, make_transport: TransportFactory, tmp_path: Path
) -> None:
    shell = activation(tmp_path, python(tmp_path / "wrapper", f'exec {sys.executable} "$@"'))
    transport = make_transport(python="python3", shell=shell)
    assert problems(transport.examine()) == []
    channel = begin(transport)
    (agent,) = agents(transport, hosts)
    assert b"\0ACTIVATED=tf\0" in Path(f"/proc/{agent}/environ").read_bytes()
    channel.close()


def test_a_shell_command_that_fails_is_named(make_transport: TransportFactory) -> None:
    shell = "source /nowhere/activate tf"
    ((message, hint),) = problems(make_transport(shell=shell).examine())
    assert message.startswith(f"host 'h0': the command `{shell}` failed\n")
    assert "/nowhere/activate: No such file or directory" in message
    assert hint == "Correct `shell:` of this host in the spec."
    ((message, hint),) = problems(make_transport(shell="conda activate tf").examine())
    assert message.startswith("host 'h0': the command `conda activate tf` failed\n")
    assert "Write `shell: source CONDA/bin/activate tf`" in hint


def test_the_advice_installs_into_the_environment(make_transport: TransportFactory, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    shell = f"source {tmp_path}/venv/bin/activate"
    report = make_transport(python="python3", shell=shell).examine()
    assert report.python == f"{tmp_path}/venv/bin/python3"
    assert {hint for _, hint in problems(report)} == {
        f"Install with `ssh h0 \"bash -lc '{shell} && {tmp_path}/venv/bin/python3 -m pip install tensorflow'\"`."
    }


def test_the_code_is_sent_once(hosts: SshHosts, make_transport: TransportFactory) -> None:
    shutil.rmtree(hosts.home("h1") / "cache" / "tfcluster", ignore_errors=True)
    assert make_transport("h1").examine().shipped_bytes == len(code_bundle())
    assert make_transport("h1").examine().shipped_bytes == 0
    assert make_transport("h1").is_up() is False
    for folder in (code_of(hosts, "h1"), code_of(hosts, "h1").parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_several_first_sessions_at_once(hosts: SshHosts, make_transport: TransportFactory) -> None:
    shutil.rmtree(hosts.home("h1") / "cache" / "tfcluster", ignore_errors=True)
    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(lambda transport: transport.examine(), [make_transport("h1") for _ in range(4)]))
    assert [problems(each) for each in reports] == [[]] * 4
    assert kept_in(code_of(hosts, "h1").parent) == sorted([code_hash(), "lock"])


def kept_in(cache: Path) -> list[str]:
    """Return what is in a cache of code, except the links that name the code of journals."""
    return sorted(path.name for path in cache.iterdir() if not path.is_symlink())


def test_all_missing_packages_are_reported_at_once(make_transport: TransportFactory, tmp_path: Path) -> None:
    package = tmp_path / "site" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "libtensorflow_cc.so.2").touch()
    (tmp_path / "site" / "numpy").mkdir()
    (tmp_path / "site" / "numpy" / "__init__.py").touch()
    bare = python(tmp_path / "bare", f'PYTHONPATH={package.parent} exec {sys.executable} -S "$@"')
    # Without `site` even a virtual environment's Python takes itself for the system's, into which pip may not install.
    fast = "import sys, time; sys.prefix *= 2; now = time.time; time.time = lambda: now() + 60; exec(sys.argv[1])"
    bare_and_fast = python(tmp_path / "fast", f'exec {bare} -c {fast!r} "$2"'.replace("'", '"'))
    report = make_transport(python=bare_and_fast).examine()
    install = f"`ssh h0 '{sys.executable} -m pip install grpcio protobuf'`"
    missing = problems(report)
    assert abs(report.clock_offset - 60) <= report.clock_error + 0.001
    assert [message for message, _ in missing] == [
        f"host 'h0': {package} is not installed for {sys.executable}" for package in ("grpcio", "protobuf")
    ]
    assert [install in hint for _, hint in missing] == [True, True]
    assert report.tensorflow is None


def test_a_python_of_the_system_gets_an_environment(
    hosts: SshHosts, make_transport: TransportFactory, tmp_path: Path
) -> None:
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    managed = f"sysconfig.get_path = lambda name: {str(tmp_path)!r}; sys.prefix = sys.base_prefix"
    line = f'exec {sys.executable} -S -c "import sys, sysconfig; {managed}; exec(sys.argv[1])" "$2"'
    ((_, hint),) = problems(make_transport(python=python(tmp_path / "managed", line)).examine())
    venv = hosts.home("h0") / "tf"
    assert f"`ssh h0 '{sys.executable} -m venv {venv} && {venv}/bin/pip install tensorflow'`" in hint
    assert f"`python: {venv}/bin/python`" in hint


def test_a_python_that_is_too_old(make_transport: TransportFactory, tmp_path: Path) -> None:
    old = 'import sys; sys.version_info = (3, 10, 2); sys.version = \\"3.10.2 (x)\\"; exec(sys.argv[1])'
    transport = make_transport(python=python(tmp_path / "old", f'exec {sys.executable} -c "{old}" "$2"'))
    problem = (
        f"host 'h0': {sys.executable} is Python 3.10.2, and tfcluster requires 3.11 or newer",
        "Set `python:` in the spec to a newer one.",
    )
    assert problems(transport.examine()) == [problem]
    with pytest.raises(ClusterError) as caught:
        transport.open(start=True)
    assert (caught.value.message, caught.value.hint) == problem


def test_no_such_python(make_transport: TransportFactory) -> None:
    ((message, hint),) = problems(make_transport(python="/opt/it's not/here").examine())
    assert message.startswith("host 'h0': there is no /opt/it's not/here to run\n  ")
    assert "No such file" in message
    assert "`python:`" in hint


def test_a_python_without_a_module(make_transport: TransportFactory, tmp_path: Path) -> None:
    broken = python(tmp_path / "cut", f"echo Welcome; exec {sys.executable} -c 'import zlip'")
    ((message, _),) = problems(make_transport(python=broken).examine())
    assert message == (
        f"host 'h0': {broken} ended with exit code 1 before it answered as Python does\n  Welcome\n"
        "  ModuleNotFoundError: No module named 'zlip'"
    )


def test_a_noisy_login_shell(hosts: SshHosts, make_transport: TransportFactory) -> None:
    profile = hosts.home("h0") / ".bashrc"
    profile.write_text(f"echo Welcome; seq 20000; printf 'no newline: {MESSAGE_PREFIX}'; echo oops >&2\n")
    try:
        report = make_transport().examine()
    finally:
        profile.unlink()
    assert problems(report) == []
    assert report.python == sys.executable


@pytest.mark.slow
def test_setup_runs_once_and_may_make_the_python(
    hosts: SshHosts, make_transport: TransportFactory, tmp_path: Path
) -> None:
    interpreter, count = tmp_path / "made it's", tmp_path / "count"
    setup = (
        f'echo "$WORD" >> {count}; cat',
        f'printf "%s\\n" "#!/bin/sh" "exec {sys.executable} \\"\\$@\\"" > "{interpreter}"; chmod +x "{interpreter}"',
    )
    transport = make_transport(python=str(interpreter), setup=setup, env={"WORD": "a 'b' $c"})
    report = transport.examine(dry=True)
    assert problems(report) == []
    assert report.unexamined == (
        f"python: {interpreter} does not exist yet; `setup:` might create it: not checked",
        "`setup:` has not been run there: what it changes is not checked",
    )
    assert not count.exists()
    for _ in range(2):
        assert problems(transport.examine()) == []
        assert count.read_text() == "a 'b' $c\n"
    assert problems(make_transport("h1", python=str(interpreter), setup=setup).examine()) == []
    assert len(count.read_text().splitlines()) == 2  # another host is another host


@pytest.mark.slow
def test_setup_that_fails_shows_its_last_lines(
    hosts: SshHosts, make_transport: TransportFactory, tmp_path: Path
) -> None:
    fails = f"[ -e {tmp_path}/mended ] || {{ seq 100; echo no disk >&2; exit 9; }}"
    setup = ("true", fails, f"touch {tmp_path}/after")
    transport = make_transport(setup=setup)
    ((message, hint),) = problems(transport.examine())
    assert message.startswith(f"host 'h0': the setup command `{fails}` ended with exit code 9\n")
    assert message.endswith("  99\n  100\n  no disk")
    assert "  92\n" not in message
    assert "`setup:`" in hint
    assert not (tmp_path / "after").exists(), "the rest of the list is not run"
    with pytest.raises(ClusterError):  # no agent is started without all that it might need
        transport.open(start=False)
    (tmp_path / "mended").touch()
    assert problems(transport.examine()) == []
    transport.open(start=False).close()
