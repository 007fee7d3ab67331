"""Which members of a group compute, they or their child processes, and which do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.conftest import wait_for
from tfcluster.processes.groups.host import IdleMembers, _processor_seconds

_COMPUTE = "while True: pass"
_HAS_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_COMPUTE!r}])"


@contextmanager
def member(program: str) -> Iterator[int]:
    """A process with a process group of its own, as members are."""
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_only_members_that_do_not_compute_are_idle() -> None:
    members = IdleMembers()
    with ExitStack() as stack:
        computing = [stack.enter_context(member(program)) for program in (_COMPUTE, _HAS_A_CHILD)]
        wait_for(lambda: all(_processor_seconds(pid) > 0.25 for pid in computing))
        idle = stack.enter_context(member("import time\nwhile time.process_time() < 0.2: pass\ntime.sleep(1000)"))
        wait_for(lambda: _processor_seconds(idle) > 0.1)
        members.watch(dict(enumerate([*computing, idle])), 1.0)
        assert wait_for(members.take_idle) == [2]
        assert members.seconds_left() > 0
        assert [members.forget(rank) for rank in range(3)] == [False, False, True]
    assert members.seconds_left() == float("inf")
