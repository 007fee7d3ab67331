"""Control groups, for tests of memory that runs out and of processes that are not allowed."""

from __future__ import annotations

import contextlib
import os
import resource
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import skip, wait_for

#: A script that needs 1 GiB of memory, and is what the kernel kills if there is less.
EATS_MEMORY = """
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
data = [bytearray(1 << 20) for _ in range(1024)]
"""


@dataclass
class ControlGroup:
    """A control group inside that of the test.

    Attributes:
        folder: Its folder.
        limit_file: The file in it that limits its memory, or its processes.
    """

    folder: Path
    limit_file: Path

    def join(self) -> None:
        """Move this process into the group, and all that it starts from now on."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self, size: int) -> None:
        """Limit it to this number of bytes, and to none of swap."""
        self.limit_file.write_text(str(size))
        for name, value in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", size)):
            if (self.folder / name).exists():
                (self.folder / name).write_text(str(value))


def memory_group() -> AbstractContextManager[ControlGroup]:
    """Create a control group whose memory can be limited."""
    return _control_group("memory", "memory.limit_in_bytes")


@contextlib.contextmanager
def cpu_group(cores: float) -> Iterator[ControlGroup]:
    """Create a control group whose processes can keep a number of cores busy."""
    with _control_group("cpu", "cpu.cfs_quota_us") as group:
        period, quota = 100_000, int(cores * 100_000)
        group.limit_file.write_text(f"{quota} {period}" if group.limit_file.name == "cpu.max" else f"{quota}")
        yield group


@contextlib.contextmanager
def no_more_processes(pid: int) -> Iterator[None]:
    """Let a process fork no other one: by a control group, as the limit of an account does not hold for root."""
    if os.geteuid() != 0:
        limits = resource.prlimit(pid, resource.RLIMIT_NPROC)
        resource.prlimit(pid, resource.RLIMIT_NPROC, (1, limits[1]))
        yield
        resource.prlimit(pid, resource.RLIMIT_NPROC, limits)
        return
    with _control_group("pids", "pids.max") as group:
        (group.folder / "cgroup.procs").write_text(str(pid))
        group.limit_file.write_text("1")
        try:
            yield
        finally:
            (group.folder.parent / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def _control_group(controller: str, old_limit: str) -> Iterator[ControlGroup]:
    """Create a control group; where that is impossible (no root, read-only), skip the test, or fail it in CI.

    Args:
        controller: The controller that limits it.
        old_limit: The file of the limit in version 1 of control groups.
    """
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            parent, limit_file = f"/sys/fs/cgroup/{controller}{path}", old_limit
        elif not controllers:
            parent, limit_file = f"/sys/fs/cgroup{path}", f"{controller}.max"
        else:
            continue
        folder = Path(parent) / f"tfcluster-test-{uuid.uuid4().hex}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit_file).exists():
                break
            folder.rmdir()
    else:
        skip(f"no control group of {controller} can be created here")
    try:
        yield ControlGroup(folder, folder / limit_file)
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()
