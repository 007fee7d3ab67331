"""A place of its own for each test that runs the real command, checked for what was left behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tfcluster.process_handle import ProcessHandle

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "cluster.yaml"
COMMAND = (sys.executable, "-m", "tfcluster")

# The same examples every time, however slowly they are made; `--hypothesis-profile default` looks for others.
settings.register_profile(
    "suite", settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
)
settings.load_profile("suite")

# The tests spend about half of their time waiting.
_WORKERS_PER_CORE = 2
# The tests that start processes of the product, or TensorFlow servers, are in these folders or use these fixtures.
_INTEGRATION_FOLDERS = {"end_to_end", "processes", "transport"}
_INTEGRATION_FIXTURES = {"sandbox", "demo", "hosts", "pair", "local_run"}
_CLONE_NEWNET = 0x40000000  # linux/sched.h

Result = subprocess.CompletedProcess[str]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tfcluster")
    group.addoption("--faults", type=int, default=5, help="how many faults strike in the chaos test")
    group.addoption("--chaos-seed", type=int, default=None, help="what strikes, and when, in the chaos test")
    group.addoption("--cycles", type=int, default=10, help="how often test_cycles takes a cluster up and down")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # this process is a worker of pytest-xdist
        _enter_network_namespace()


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for `-n auto`; 0, which means no workers, if they could not be isolated."""
    if subprocess.run(["unshare", "--net", "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        assert not os.environ.get("CI"), "CI can create network namespaces"
        return 0
    return _WORKERS_PER_CORE * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.path.parent.name in _INTEGRATION_FOLDERS or not _INTEGRATION_FIXTURES.isdisjoint(fixtures):
            item.add_marker(pytest.mark.integration)
    if hasattr(config, "workerinput"):
        # Workers take modules in this order: the long ones first, so that all workers end at about the same time.
        items.sort(key=lambda item: item.get_closest_marker("integration") is None)


def _enter_network_namespace() -> None:
    """Move this thread, and all that it starts, to a network namespace of its own.

    Tests that run at the same time must not take each other's ports. The lock files of ports, the addresses and the
    abstract Unix sockets are separate for each network namespace too.

    Raises:
        OSError: No network namespace can be created.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a worker needs a network namespace; without root, run `pytest -n 0`")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@dataclass
class Sandbox:
    """Folders and an environment in which `tfcluster` sees no cluster but those of the test."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    command: tuple[str, ...] = COMMAND

    @property
    def environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TFCLUSTER_") and name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        }
        return {
            **inherited,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "PYTHONPATH": f"{ROOT / 'tests' / 'changed'}:{ROOT}",
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "TEST_HOSTS": str(self.folder),  # where tests/played.py looks
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
            [*self.command, *map(str, arguments)],
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

    def start(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None, **streams: Any
    ) -> subprocess.Popen[str]:
        """Start the command and leave it running, at most until the test ends; its output can be read."""
        process = subprocess.Popen(
            [*self.command, *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **(env or {})},
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        )
        self.started.append(process)
        return process

    def end_commands(self) -> None:
        """End the commands that were started and still run: those of a test that failed."""
        while self.started:
            with contextlib.suppress(BrokenPipeError), self.started.pop() as process:
                process.kill()

    def json(self, *arguments: str | Path, code: int | None = 0) -> Any:
        """Run the command with JSON output and return its last line."""
        return json.loads(self(*arguments, "-o", "json", code=code).stdout.splitlines()[-1])

    def with_settings(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return environment variables for commands, and their agents, with other values in tfcluster.settings.

        Args:
            settings: The values by name.
        """
        inherited = json.loads(self.environment.get("TEST_SETTINGS", "{}"))
        return {"TEST_SETTINGS": json.dumps({**inherited, **settings})}

    def with_fault(self, module: str, source: str) -> dict[str, str]:
        """Return environment variables for commands, and their agents, in which a module has a fault.

        Args:
            module: The module's full name.
            source: What is executed in the module when it has been imported.
        """
        inherited = json.loads(self.environment.get("TEST_CHANGES", "{}"))
        return {"TEST_CHANGES": json.dumps({**inherited, module: f"{inherited.get(module, '')}\n{source}"})}

    def status(self, code: int | None = 0) -> Any:
        return self.json("status", code=code)

    def wait_until(self, state: str, seconds: float = 120.0) -> Any:
        """Wait until the cluster is in a state, and return its status."""

        def reached() -> Any:
            output = self("status", "-o", "json", code=None).stdout
            # Without an answer the agent has just died, or the machine is busy and it took too long.
            status = json.loads(output) if output else {"state": "not known"}
            return status if status["state"] == state else None

        return wait_for(reached, seconds)

    def agent(self) -> int:
        """The pid of the cluster's agent; a command has another one started where it died."""
        return int(self.status(code=None)["hosts"][0]["agent_pid"])

    def kill_agent(self) -> int:
        """End the agent as the kernel would when memory runs out; its pid, and no later command meets it."""
        (lock,) = self.folder.glob("state/tfcluster/*/*/lock")
        agent = ProcessHandle.of(json.loads(lock.read_text())["pid"])
        assert agent is not None, "it lives until now"
        os.kill(agent.pid, signal.SIGKILL)
        wait_for(lambda: not agent.alive())
        return agent.pid

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
        files += [*self.folder.glob("run/tfcluster/*"), *self.folder.glob("state/tfcluster/*/hosts.json")]
        return [*map(str, self.processes().items()), *map(str, files)]


def mostly_slow(values: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """Return values for `pytest.mark.parametrize`, of which all but the fast ones have the marker `slow`."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait until a condition about other processes holds, and return what it gave.

    The machine may be slow, or stand still for seconds: the bound is for what never comes.
    """
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


def _make(folder: Path, command: tuple[str, ...] = COMMAND) -> Iterator[Sandbox]:
    """A sandbox in a folder; everything in it is taken down afterwards, with a check that nothing is left."""
    (folder / "run").mkdir(mode=0o700)
    sandbox = Sandbox(folder, command=command)
    yield sandbox
    sandbox.end_commands()
    if sandbox.leftovers():
        sandbox("down", "--all", "--grace", "1", code=None)
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not sandbox.leftovers(), seconds=30)  # a killed command's agent ends by itself in a moment
    left = sandbox.leftovers()
    for pid in sandbox.processes():
        os.kill(pid, signal.SIGKILL)
    assert not left


@contextlib.contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block, also where that fails."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def commands_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the commands that a failed test has left running, also in a sandbox that the tests of a module share."""
    yield
    for value in request.node.funcargs.values():
        if isinstance(value, Sandbox):
            value.end_commands()


@pytest.fixture(scope="module")
def cold() -> Iterator[None]:
    """No interpreter is warmed up before the first run: for modules on whose clusters programs hardly run.

    To import TensorFlow takes more of a processor than all else that happens to such a cluster.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "TEST_CHANGES", json.dumps({"tfcluster.agent.runs.run_manager": "RunManager.warm_up = lambda runs: None"})
        )
        yield


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
