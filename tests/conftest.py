"""A place of its own for each test that runs the real command, checked for what was left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "cluster.yaml"
COMMAND = (sys.executable, "-m", "tfcluster")

Result = subprocess.CompletedProcess[str]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tfcluster")
    group.addoption("--faults", type=int, default=8, help="how many faults strike in the chaos test")
    group.addoption("--chaos-seed", type=int, default=None, help="what strikes, and when, in the chaos test")
    group.addoption("--cycles", type=int, default=5, help="how often test_cycles takes a cluster up and down")


@dataclass
class Sandbox:
    """Folders and an environment in which `tfcluster` sees no cluster but those of the test."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TFCLUSTER_") and name not in ("NO_COLOR", "FORCE_COLOR")
        }
        return {
            **inherited,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "TEST_MARK": self.mark,  # every process of the sandbox inherits it and is found by it
        }

    def __call__(
        self,
        *arguments: str | Path,
        code: int | None = 0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 90,
    ) -> Result:
        """Run the command and check its exit code, unless that is None."""
        result = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=cwd or self.folder,
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert code in (None, result.returncode), f"{arguments}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stdout + result.stderr
        return result

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start the command and leave it running; its output can be read."""
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def json(self, *arguments: str | Path, code: int | None = 0) -> Any:
        """Run the command with JSON output and return its last line."""
        return json.loads(self(*arguments, "-o", "json", code=code).stdout.splitlines()[-1])

    def status(self, code: int | None = 0) -> Any:
        return self.json("status", code=code)

    def wait_until(self, state: str, seconds: float = 30.0) -> Any:
        """Wait until the cluster is in a state, and return its status."""

        def reached() -> Any:
            process = self.start("status", "-o", "json")
            output, error = process.communicate(timeout=60)
            if process.returncode == 5:  # the machine is busy, and the agent took too long to answer
                return None
            assert output, error
            status = json.loads(output)
            return status if status["state"] == state else None

        return wait_for(reached, seconds)

    def task(self, short: str, code: int | None = 0) -> Any:
        """One task of the status; a code of None takes any health."""
        job, index = short.split(":")
        return next(task for task in self.status(code)["tasks"] if task["job"] == job and task["index"] == int(index))

    def spec(self, text: str, name: str = "cluster.yaml") -> Path:
        """Write a spec."""
        path = self.folder / name
        path.write_text(text)
        return path

    def processes(self) -> dict[int, str]:
        """The command line of each living process that was started in this sandbox, by its pid."""
        mark = f"TEST_MARK={self.mark}".encode()
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes() and (path / "stat").read_text().rpartition(")")[2][1] != "Z":
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
        return found

    def leftovers(self) -> list[str]:
        """Everything that a cluster may not leave behind: processes, sockets, files but logs and runs."""
        kept = {"logs", "runs"}
        files = [path for path in self.folder.glob("state/tfcluster/*/*/*") if path.name not in kept]
        files += list(self.folder.glob("run/tfcluster/*"))
        return [*map(str, self.processes().items()), *map(str, files)]


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until a condition about other processes holds, and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


@dataclass
class MemoryGroup:
    """A memory control group of the test's own, inside that of the test.

    Attributes:
        folder: Its folder.
        maximum: The file in it that limits its memory.
    """

    folder: Path
    maximum: Path

    def join(self) -> None:
        """Put this process into it, and all that it starts."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self, size: int) -> None:
        """Give it so many bytes, and none to swap to."""
        self.maximum.write_text(str(size))
        for name, left in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", size)):
            if (self.folder / name).exists():
                (self.folder / name).write_text(str(left))


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """A fresh memory control group; the test is skipped, but in CI, where none can be made (no root, read-only)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            parent, maximum = f"/sys/fs/cgroup/memory{path}", "memory.limit_in_bytes"
        elif not controllers:
            parent, maximum = f"/sys/fs/cgroup{path}", "memory.max"
        else:
            continue
        folder = Path(parent) / f"tfcluster-test-{uuid.uuid4().hex}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / maximum).exists():
                break
            folder.rmdir()
    else:
        assert not os.environ.get("CI"), "CI can make a memory control group"
        pytest.skip("no memory control group can be made here")
    try:
        yield MemoryGroup(folder, folder / maximum)
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


def _make(folder: Path) -> Iterator[Sandbox]:
    (folder / "run").mkdir(mode=0o700)
    sandbox = Sandbox(folder)
    yield sandbox
    subprocess.run(
        [*COMMAND, "down", "--all", "--grace", "1"],
        env=sandbox.environment,
        cwd=folder,
        capture_output=True,
        timeout=60,
        check=False,
    )
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not sandbox.leftovers())  # a killed command's agent ends by itself in a moment
    left = sandbox.leftovers()
    for pid in sandbox.processes():
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox in which every cluster is taken down afterwards, with a check that nothing is left."""
    yield from _make(tmp_path)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with the example cluster up, shared by the tests of a module; they leave it ready."""
    for sandbox in _make(tmp_path_factory.mktemp("demo")):
        sandbox("up", EXAMPLE)
        yield sandbox
