"""What all tests share: the sandbox in which they run the real command, and how they run in parallel."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import pexpect
import pytest
from hypothesis import HealthCheck, settings

from tests import goldens, parallel, requirements
from tfcluster.os import procfs
from tfcluster.os.process_handle import ProcessHandle, is_frozen

if TYPE_CHECKING:
    from tests.project import Project

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "cluster.yaml"
#: Programs that tests run.
SCRIPTS = ROOT / "tests" / "scripts"
COMMAND = (sys.executable, "-m", "tfcluster")
#: The command, with the hosts elsewhere played on this machine.
PLAYED = (sys.executable, "-m", "tests.played")

# The same examples every time, however slowly they are made; `--hypothesis-profile default` looks for others.
settings.register_profile(
    "suite", settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
)
settings.load_profile("suite")

#: A script whose daemon becomes a child of `parent`, the script's own parent; it ends when that has reaped the daemon.
REAPED_DAEMON = """
reading, writing = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        while os.getppid() != parent:
            time.sleep(0.01)
        os.write(writing, b"%d" % os.getpid())
        os._exit(0)
    os._exit(0)
os.wait()
daemon = int(os.read(reading, 20))
while os.path.exists(f"/proc/{daemon}"):
    time.sleep(0.01)
"""
#: A fault: an agent hangs after one signal, until another one, and is not stopped meanwhile.
HANG, RESUME = 40, 41
HANGING_AGENT = (
    "tfcluster.agent.main",
    f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{RESUME}])\n"
    f"signal.signal({HANG}, lambda *_: signal.sigwait([{RESUME}]))",
)
#: Environment variables for a command that draws with matplotlib.
WITH_PLOTS = {"TEST_HIDDEN_MODULES": ""}

Result = subprocess.CompletedProcess[str]


class Command(subprocess.Popen[str]):
    """A command that was started with pipes."""

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tfcluster")
    group.addoption("--faults", type=int, default=2, help="how many faults strike in the chaos test")
    group.addoption("--chaos-seed", type=int, default=None, help="what strikes, and when, in the chaos test")
    group.addoption("--examples", type=int, default=0, help="how many random sequences of the crash model")
    group.addoption("--cycles", type=int, default=3, help="how often test_cycles takes a cluster up and down")
    group.addoption("--update", action="store_true", help="rewrite tests/golden and other expected outputs")


def pytest_configure(config: pytest.Config) -> None:
    # A shell without job control starts what stands before `&` with SIGINT ignored, which every command would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    goldens.Update.is_on = config.getoption("--update")
    if parallel.is_worker(config):
        parallel.enter_network_namespace()
    else:
        os.environ["TEST_RUN"] = uuid.uuid4().hex


def pytest_unconfigure(config: pytest.Config) -> None:
    if not parallel.is_worker(config):  # tests that were interrupted could not clean up
        parallel.end_leftovers(os.environ["TEST_RUN"])


def pytest_xdist_auto_num_workers() -> int:
    return parallel.worker_count()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without garbage collections, which take a third of that time; later ones skip these objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    parallel.mark_integration_tests(items)
    if parallel.is_worker(config):
        parallel.sort_long_modules_first(items)


def needs_of(item: pytest.Item) -> set[str]:
    """Return what a test, or a fixture that it uses, says that it needs of the machine."""
    fixtures = {name.removeprefix("needs_") for name in getattr(item, "fixturenames", ()) if name.startswith("needs_")}
    return fixtures.union(*(mark.args for mark in item.iter_markers("needs")))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    requirements.declared = needs_of(item)
    if missing := requirements.missing(requirements.declared):
        reason = f"missing: {', '.join(missing)}"
        if os.environ.get("CI") and missing != [requirements.ROOT]:
            pytest.fail(reason)  # CI installs all programs for every account
        skip(reason)


def skip(reason: str) -> NoReturn:
    """Skip the test that runs now, which this machine or account cannot run; fail it as root in CI, which can."""
    (pytest.fail if os.environ.get("CI") and os.geteuid() == 0 else pytest.skip)(reason)
    raise AssertionError("both raise")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist tells the main process
def pytest_collection_finish(session: pytest.Session) -> None:
    line = requirements.summarize(map(needs_of, session.items))
    if parallel.is_worker(session.config):
        parallel.send_line(line)
    elif line:
        print_line(session.config, line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    if line := parallel.receive_line():
        print_line(node.config, line)


def print_line(config: pytest.Config, line: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    reporter.write_line(line)


def _fixture(name: str) -> Any:
    """Make the fixture that other fixtures request to say what they need of the machine."""
    return pytest.fixture(scope="session", name=name)(lambda: None)


globals().update({name: _fixture(name) for name in map("needs_{}".format, requirements.NEEDS)})


@dataclass
class Sandbox:
    """Folders and an environment in which `tfcluster` sees only the clusters of the test."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[Command] = field(default_factory=list)
    command: tuple[str, ...] = COMMAND

    @property
    def environment(self) -> dict[str, str]:
        # An agent with PYTHONUNBUFFERED would run each script without it in a fresh interpreter.
        left_out = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONUNBUFFERED", "VIRTUAL_ENV", "CONDA_PREFIX")
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TFCLUSTER_") and name not in left_out
        }
        return {
            **inherited,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "PYTHONPATH": f"{ROOT / 'tests' / 'changed'}:{ROOT}",
            # Keras imports it if it is installed, as it is for our tests of plots: 0.4 s for each import of TensorFlow.
            "TEST_HIDDEN_MODULES": "matplotlib",
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
        result = self.execute(*self.command, *arguments, env=env, cwd=cwd or self.folder, timeout=timeout)
        assert code in (None, result.returncode), f"{arguments}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stdout + result.stderr
        return result

    def execute(self, *words: str | Path, env: Mapping[str, str] | None = None, **options: Any) -> Result:
        """Run any command in the sandbox, whatever its exit code, with options of `subprocess.run`."""
        streams = {} if "input" in options else {"stdin": subprocess.DEVNULL}
        default = {"cwd": self.folder, "capture_output": True, "text": True, "timeout": 90, "check": False}
        environment = {**self.environment, **(env or {})}
        return subprocess.run([*map(str, words)], env=environment, **{**default, **streams, **options})

    def start(self, *arguments: str | Path, env: Mapping[str, str] | None = None, **streams: Any) -> Command:
        """Start the command in the background, at most until the test ends; its output can be read."""
        process = Command(
            [*self.command, *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **(env or {})},
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        )
        self.started.append(process)
        return process

    def end_commands(self) -> None:
        """Kill the commands that were started and still run, if a test failed."""
        while self.started:
            with contextlib.suppress(BrokenPipeError), self.started.pop() as process:
                process.kill()

    def json_lines(self, name: str, *arguments: str | Path, **options: Any) -> list[Any]:
        """Run a command with JSON output and return all lines."""
        return lines_of(self(name, "-o", "json", *arguments, **options).stdout)

    def json(self, *arguments: str | Path, **options: Any) -> Any:
        """Run the command with JSON output and return its last line."""
        return json.loads(self(*arguments, "-o", "json", **options).stdout.splitlines()[-1])

    def last_run(self) -> Any:
        """Return the record of the latest run; those of other tests may have failed in any way."""
        return self.json("runs", "-n", "1")[0]

    def at_terminal(self, *words: str | Path, env: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Start any command at a terminal of 40 lines and 100 columns, with options of `pexpect.spawn`."""
        environment = {**self.environment, "TERM": "xterm-256color", **(env or {})}
        default = {"cwd": str(self.folder), "dimensions": (40, 100), "encoding": "utf-8", "timeout": 90}
        command, *arguments = map(str, words)
        return pexpect.spawn(command, arguments, env=environment, **{**default, **options})

    def with_settings(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return environment variables for commands, and their agents, with other values in tfcluster.settings."""
        inherited = json.loads(self.environment.get("TEST_SETTINGS", "{}"))
        return {"TEST_SETTINGS": json.dumps({**inherited, **settings})}

    def with_fault(self, module: str, source: str) -> dict[str, str]:
        """Return environment variables for commands, and their agents, in which a module executes more source."""
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

    def wait_for_event(self, text: str) -> None:
        """Wait until a line of the event log contains a text."""
        follow = self.start("events", "-f")
        assert any(text in line for line in follow.stdout), follow.communicate()[1]
        follow.terminate()
        follow.communicate(timeout=60)

    def agent(self) -> int:
        """Return the pid of the cluster's agent; if it has died, this starts another one."""
        return int(self.status(code=None)["hosts"][0]["agent_pid"])

    def recorded_agent(self, host: str = "*") -> int:
        """Return the pid of the agent on a host. A child of it has its title for a moment, so the title is no proof."""
        (lock,) = self.folder.glob(f"state/tfcluster/*/{host}/lock")
        return int(json.loads(lock.read_text())["pid"])

    def kill_agent(self) -> int:
        """Kill the agent as the kernel would when memory runs out, wait until it has exited, and return its pid."""
        agent = ProcessHandle.from_pid(self.recorded_agent())
        assert agent is not None, "it lives until now"
        os.kill(agent.pid, signal.SIGKILL)
        wait_for(lambda: not agent.is_alive())
        return agent.pid

    def task(self, short: str, code: int | None = 0) -> Any:
        """Return one task of the status, by its short name; a code of None accepts any health."""
        return next(task for task in self.status(code)["tasks"] if task["name"] == short)

    def tasks(self, field: str, code: int | None = 0) -> dict[str, Any]:
        """Return a field of each task of the status, by the task's short name."""
        return {task["name"]: task[field] for task in self.status(code)["tasks"]}

    def spec(self, text: str, name: str = "cluster.yaml", *, warm: bool = False) -> Path:
        """Write a spec. Its cluster imports TensorFlow before the first run only if `warm` says so.

        Importing TensorFlow takes more processor time than all else that most clusters of the tests do.
        """
        path = self.folder / name
        path.write_text(text if warm or path.suffix != ".yaml" else not_warm(text))
        return path

    def processes(self) -> dict[int, str]:
        """Return the command line of each running process that was started in this sandbox, by its pid."""
        return marked_processes(self.mark)

    def pids(self, words: str) -> list[int]:
        """Return the pids of the processes with these words in their command line or title."""
        return [pid for pid, title in self.processes().items() if words in title]

    def leftovers(self) -> list[str]:
        """Return everything that a cluster must not leave behind: processes, sockets, files except logs and runs."""
        allowed = {"logs", "runs"}
        files = [path for path in files_of(self.folder, "state/tfcluster/*/*/*") if path.name not in allowed]
        files += files_of(self.folder, "run/tfcluster/*") + files_of(self.folder, "state/tfcluster/*/hosts.json")
        return [*map(str, self.processes().items()), *map(str, files)]


def not_warm(spec: str) -> str:
    """Return a spec with the key `warm: false`, on a line after all others."""
    spec = spec.rstrip()
    return f"{spec[:-1]},\nwarm: false}}" if spec.startswith("{") else f"{spec}\nwarm: false\n"


def mostly_slow(values: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """Return values for `pytest.mark.parametrize`, with the marker `slow` on all except the fast ones."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]


def lines_of(output: str) -> list[Any]:
    """Return the JSON value of each line."""
    return [json.loads(line) for line in output.splitlines()]


def read_until(stream: IO[str], words: str) -> list[str]:
    """Return the lines of a stream up to the first one with these words."""
    lines = []
    for line in stream:
        lines.append(line.rstrip("\n"))
        if words in line:
            return lines
    raise AssertionError(f"{words!r} is not in {lines}")


def files_of(folder: Path, pattern: str) -> list[Path]:
    """Return the files in a folder that match a pattern; `Path.glob` fails if a folder is removed meanwhile."""
    return [folder / found for found in glob(pattern, root_dir=folder)]


def marked_processes(mark: str) -> dict[int, str]:
    """Return the command line of each running process with this value of TEST_MARK, by its pid."""
    processes = {}
    for path in map(Path("/proc").joinpath, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            is_marked = f"TEST_MARK={mark}".encode() in (path / "environ").read_bytes()
            command_line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            # A process that is exiting has no command line any more, and is not a zombie yet.
            if is_marked and command_line and (path / "stat").read_text().rpartition(")")[2][1] != "Z":
                processes[int(path.name)] = command_line
    return processes


def environment_of(pid: int) -> bytes:
    """Return the environment of a process; nothing if it has exited."""
    with contextlib.suppress(OSError):
        return procfs.environment(pid)
    return b""


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait until a condition about other processes holds, and return its value.

    The machine may be slow, or stall for seconds: the limit is for what never happens.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now < deadline, f"did not happen within {seconds:g} s"
        # A condition that starts a process would otherwise take the processor from what it waits for.
        time.sleep(max(0.02, 2 * (now - began)))


@contextlib.contextmanager
def make_sandbox(folder: Path, command: tuple[str, ...] = COMMAND) -> Iterator[Sandbox]:
    """Make a sandbox in a folder; in the end take down everything in it, and check that nothing is left behind."""
    (folder / "run").mkdir(mode=0o700)
    sandbox = Sandbox(folder, command=command)
    try:
        yield sandbox
        # Whatever the test has asked agents for: each of them forks, which must be done before any thread exists.
        assert [pid for pid in sandbox.pids(" agent on ") if threads_of(pid) > 1] == []
    finally:
        sandbox.end_commands()
        if sandbox.leftovers():
            sandbox("down", "--all", "--grace", "1", code=None)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not sandbox.leftovers(), seconds=30)  # the agent of a killed command exits by itself
        leftovers = sandbox.leftovers()
        for pid in sandbox.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not leftovers


def threads_of(pid: int) -> int:
    """Return the number of threads of a process; 0 if it has exited."""
    with contextlib.suppress(FileNotFoundError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


@contextlib.contextmanager
def stopped_repeatedly(pid: int) -> Iterator[None]:
    """Stop a process again each time that it is continued."""
    ended = threading.Event()

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.0002)

    thread = threading.Thread(target=stop)
    thread.start()
    wait_for(lambda: is_frozen(pid))
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def running(*command: str, **options: Any) -> Iterator[Command]:
    """Start a process that is killed at the end of the block."""
    with Command(command, text=True, **options) as process:
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


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox whose clusters are taken down afterwards, with a check that nothing is left behind."""
    with make_sandbox(tmp_path) as sandbox:
        yield sandbox


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A folder in which commands are typed, in this process, before agents that the test plays."""
    from tests.project import make_project  # imports most of the product, which few tests need in their process

    with make_project(tmp_path, monkeypatch) as project:
        yield project


@pytest.fixture(scope="session")
def demo_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with the example cluster up, from the first test of a worker that needs it to its last test."""
    with make_sandbox(tmp_path_factory.mktemp("demo")) as sandbox:
        sandbox("up", EXAMPLE)
        yield sandbox


@pytest.fixture(scope="module")
def demo(demo_cluster: Sandbox) -> Iterator[Sandbox]:
    """A sandbox with the example cluster up, which tests leave ready; the next module finds no files of this one."""
    demo_cluster("run", "pi", "--samples", "1")  # has events of its own as long as TensorFlow is being imported
    yield demo_cluster
    demo_cluster.end_commands()
    for path in demo_cluster.folder.iterdir():
        if path.name not in ("state", "run"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if any(task["restarts"] for task in demo_cluster.wait_until("running")["tasks"]):
        demo_cluster("restart", "--yes")  # after too many in ten minutes, a task is not restarted any more
