"""Memory control groups, for tests of tasks that the kernel kills because memory runs out."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import wait_for


@dataclass
class MemoryGroup:
    """A memory control group inside that of the test.

    Attributes:
        folder: Its folder.
        limit_file: The file in it that limits its memory.
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


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Create a memory control group; where that is impossible (no root, read-only), skip the test, or fail it in CI."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            parent, limit_file = f"/sys/fs/cgroup/memory{path}", "memory.limit_in_bytes"
        elif not controllers:
            parent, limit_file = f"/sys/fs/cgroup{path}", "memory.max"
        else:
            continue
        folder = Path(parent) / f"tfcluster-test-{uuid.uuid4().hex}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit_file).exists():
                break
            folder.rmdir()
    else:
        assert not os.environ.get("CI"), "CI can create memory control groups"
        pytest.skip("no memory control group can be created here")
    try:
        yield MemoryGroup(folder, folder / limit_file)
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()
