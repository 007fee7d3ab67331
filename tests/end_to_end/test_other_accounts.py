"""Other accounts on a host: `up` names them truly, and one that takes every name that it can foresee delays nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.accounts import Account, account
from tests.conftest import Sandbox, wait_for
from tfcluster.process_mark import lock_name

SPEC = "name: other\njobs:\n  ps: {tasks: 1, env: {KEY: {secret: x}}}\n  worker: {tasks: 2}\n"

pytestmark = pytest.mark.needs("root")

AsOther = Callable[[Callable[[], None]], None]


@pytest.fixture
def as_other(needs_root: None) -> Iterator[AsOther]:
    """Run functions in processes of another user, which live, with what they hold, until the test ends."""
    other = pwd.getpwnam("nobody")
    children = []

    def run(work: Callable[[], None]) -> None:
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresgid(other.pw_gid, other.pw_gid, other.pw_gid)
                os.setresuid(other.pw_uid, other.pw_uid, other.pw_uid)
                work()
                os.write(tell, b"x")
                signal.pause()
            os._exit(1)
        children.append(pid)
        os.close(tell)
        with os.fdopen(ready, "rb") as answer:
            assert answer.read(1) == b"x"

    try:
        yield run
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def assert_usable(sandbox: Sandbox) -> None:
    """Whether a cluster can be started, supervised by one agent after another, and stopped."""
    sandbox("up", sandbox.spec(SPEC))
    before = [task["pid"] for task in sandbox.status()["tasks"]]
    sandbox.kill_agent()
    assert [task["pid"] for task in sandbox.wait_until("running")["tasks"]] == before
    os.kill(before[1], signal.SIGKILL)
    wait_for(lambda: sandbox.wait_until("running")["tasks"][1]["pid"] != before[1])
    sandbox.kill_agent()
    sandbox("down")
    assert sandbox.leftovers() == []


@pytest.mark.slow
def test_names_of_sockets_that_another_account_has(sandbox: Sandbox, as_other: AsOther) -> None:
    names = [lock_name("agent", sandbox.folder / "state/tfcluster/other/localhost")]
    names += [f"tfcluster-port-{os.getuid()}-{port}" for port in range(2222, 2622)]
    kept = []

    def take_names() -> None:
        for name in names:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
                taken = socket.socket(socket.AF_UNIX, kind)
                kept.append(taken)
                with contextlib.suppress(OSError):  # an agent of another test has it
                    taken.bind(f"\0{name}")

    as_other(take_names)
    assert_usable(sandbox)


@pytest.mark.slow
def test_a_folder_in_tmp_that_another_account_has_made(
    sandbox: Sandbox, as_other: AsOther, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sandbox.folder / "run").rmdir()
    (sandbox.folder / "run").touch()  # no folder for secrets can be made there
    temporary = Path(tempfile.mkdtemp())
    try:
        temporary.chmod(0o1777)
        usual = temporary / f"tfcluster-{os.getuid()}"
        as_other(lambda: usual.mkdir(0o777))
        folders = sandbox.with_settings({"TEMPORARY_FOLDER": str(temporary)})
        monkeypatch.setenv("TEST_SETTINGS", folders["TEST_SETTINGS"])
        ups = [sandbox.start("up", sandbox.spec(SPEC)) for _ in range(3)]  # which must agree on a folder
        for up in ups:
            _, error = up.communicate(timeout=90)
            assert up.returncode == 0, error
        [private] = set(temporary.iterdir()) - {usual}
        assert private.owner() == pwd.getpwuid(os.getuid()).pw_name
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert [path.suffix for path in private.iterdir()] == [".secrets"]
        assert_usable(sandbox)
        assert set(temporary.iterdir()) == {usual, private}, "it is found again"
        assert list(private.iterdir()) == []
        assert list(usual.iterdir()) == []
        assert sandbox.leftovers() == []
    finally:
        shutil.rmtree(temporary)


@pytest.fixture
def other() -> Iterator[Account]:
    """An account with a shell, which is deleted again."""
    with account("tfc") as made:
        yield made


def test_another_account_that_can_connect_is_reported(sandbox: Sandbox, other: Account) -> None:
    """tests/cli/test_up.py has when it is repeated, tests/client/test_checks.py what is said of other hosts."""
    sandbox.spec("name: shared\njobs:\n  worker: {tasks: 1}\n")
    told = sandbox("up", "-o", "json")
    assert json.loads(told.stdout)["state"] == "running"
    assert "note: this machine: " in told.stderr
    assert "can connect to this cluster's servers through 127.0.0.1 and run code as " in told.stderr
    assert told.stderr.count("\n") == 1
    port = sandbox.task("worker:0")["address"].rpartition(":")[2]
    connecting = "import os, socket, sys; socket.create_connection(('127.0.0.1', sys.argv[1])); print(os.getuid())"
    asking = other.command(sys.executable, "-I", "-c", connecting, port)
    answer = subprocess.run(asking, cwd="/", capture_output=True, text=True, timeout=90, check=True).stdout
    assert answer == f"{other.uid}\n"
    again = sandbox("up")
    assert "nothing changed" in again.stdout
    assert again.stderr == "", "it was said when the servers were started"
