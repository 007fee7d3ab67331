"""Another account on the machine that takes every name that it can foresee: nothing of this user's is held up."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Sandbox, wait_for
from tfcluster.process_mark import lock_name

SPEC = "name: other\njobs:\n  ps: {tasks: 1, env: {KEY: {secret: x}}}\n  worker: {tasks: 2}\n"

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
