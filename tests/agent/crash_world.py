"""A host whose servers, ports, disk and clock are played, with the real agent on it: the world of test_crash_model.py.

The agent is the one of `tfcluster.agent.main` with its supervisor, handlers and journal. It can die before each step of
writing a file, and in the middle of a write. A power loss takes back what was not synced.
"""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import signal
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from tests.agent.hosts import CLUSTER
from tfcluster.agent import context as context_module
from tfcluster.agent import subprocesses
from tfcluster.agent.context import AgentContext
from tfcluster.agent.handlers import cluster as cluster_handlers
from tfcluster.agent.logs.cluster_logs import LogCollector
from tfcluster.agent.main import Agent
from tfcluster.agent.state import journal as journal_module
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.tasks import supervisor as supervisor_module
from tfcluster.agent.tasks import transitions
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome, ProbeResult
from tfcluster.agent.tasks.transitions import TaskRuntime
from tfcluster.errors import ClusterError
from tfcluster.os import files
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.os.procfs import boot_id
from tfcluster.protocol.api import Reply, Response

HOST = "a"
T = TypeVar("T")

#: Real systems write a long file in parts.
_WRITTEN_AT_ONCE = 2000
_FIRST_PID = 4_000_000
#: Enough for all that follows from an event without a wait.
_ROUNDS = 40


class AgentDiedError(SystemExit):
    """SIGKILL: the event loop lets it through, and the code of the agent does not handle it."""


@dataclass
class Clock:
    """In the place of the module `time`: passes only when told to."""

    now: float = 1000.0  # seconds since the boot
    booted: float = 1_700_000_000.0

    def time(self) -> float:
        return self.booted + self.now

    def monotonic(self) -> float:
        return self.now

    def reboot(self) -> None:
        self.booted, self.now = self.time(), 5.0


class _Selector(selectors.SelectSelector):
    """Does not wait: the clock says at once that the time has passed."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "the agent waits for something that never comes"
        self._clock.now += max(0.0, timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """The event loop of one agent; keeps the exceptions that the agent does not handle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.errors: list[BaseException] = []
        super().__init__(_Selector(clock))
        self.set_exception_handler(self._note_error)

    def _note_error(self, loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, AgentDiedError):
            self.errors.append(error)

    def time(self) -> float:
        return self._clock.monotonic()

    def _check_closed(self) -> None:
        """Accept what the coroutines of an agent that has died schedule when Python collects them."""


class Disk:
    """In the place of the module `os` where files are written: can be full, and knows what a power loss takes back."""

    def __init__(self) -> None:
        self.is_full = False
        self.steps_left: int | None = None  # the agent dies after this number of steps of writing; None if it does not
        self.error: OSError | None = None  # what the step after these raises, for an agent that does not die of it
        self.fails_always = False  # whether all later steps of writing raise it too
        self.has_failed = False
        self.is_dead = False
        self._synced: dict[Path, int] = {}  # how much of each file is on the disk
        self._paths: dict[int, Path] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return os.open(path, flags, mode)
        self._step()
        fd = os.open(path, flags, mode)
        self._paths[fd] = Path(path)
        if flags & os.O_CREAT:
            self._synced[Path(path)] = 0
        return fd

    def write(self, fd: int, data: bytes) -> int:
        self._step(lambda: os.write(fd, data[: len(data) // 2]))
        if self.is_full and len(data) < 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data[: len(data) // 2 if self.is_full else _WRITTEN_AT_ONCE])

    def fsync(self, fd: int) -> None:
        self._step()
        self._synced[self._paths[fd]] = os.fstat(fd).st_size

    def close(self, fd: int) -> None:
        try:
            if fd in self._paths and self.error and not self.has_failed:  # some disks report only now what is lost
                self._step()
        finally:
            self._paths.pop(fd, None)
            os.close(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        self._step()
        os.ftruncate(fd, size)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        os.replace(source, target)
        self._synced[target] = self._synced.pop(source)

    def unlink(self, path: Path) -> None:
        if not self.has_failed:  # a full disk has room for that
            self._step()
        os.unlink(path)
        self._synced.pop(path, None)

    def _step(self, partly: Callable[[], object] = lambda: None) -> None:
        if self.is_dead:
            raise AgentDiedError
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.steps_left = None
                partly()
                if self.error is not None:
                    self.has_failed, self.steps_left = True, 0 if self.fails_always else None
                    raise self.error
                self.is_dead = True
                raise AgentDiedError

    @contextmanager
    def used_by_a_server(self) -> Iterator[None]:
        """Let a process write that does not die with the agent."""
        before, self.is_dead, self.steps_left = (self.is_dead, self.steps_left), False, None
        yield
        self.is_dead, self.steps_left = before

    def lose_power(self, share: float, *, leaves_zeros: bool) -> None:
        """Keep a share of what was not synced of each file; the rest is missing, or zeros."""
        for path, synced in self._synced.items():
            if path.exists() and (size := path.stat().st_size) > synced:
                os.truncate(path, synced + int(share * (size - synced)))
                if leaves_zeros:
                    os.truncate(path, size)


@dataclass(eq=False, repr=False)
class Server:
    """A process that was forked for a task, as the agent and the operating system see it."""

    host: World
    process: ProcessHandle
    task: str
    port: int | None
    on_exit: Callable[[int | None], None] | None  # of the agent that watches it
    on_message: Any = None
    is_alive: bool = True
    is_released: bool = False
    is_hanging: bool = False
    is_terminated: bool = False  # whether it got SIGTERM
    #: How many restarts of its task may have been counted when it was started; None after a loss of records.
    restarts: frozenset[int] | None = None

    @property
    def pidfd(self) -> int:
        return self.process.pid

    def send(self, message: object) -> None:
        self.is_released = True
        self.restarts = self.host.expected_restarts(self.task)
        self.host.latest[self.task] = self
        if not self.host.is_changing():  # which starts it again if it stops for the change
            self.host.requested.discard(self.task)
        self.host.loop.call_soon(self.on_message, {"serves": True})

    def register(self, received: Callable[[object], None], on_close: object) -> None:
        self.on_message = received

    def close_pipe(self) -> None:
        pass

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def wait(self) -> None:
        assert not self.is_alive
        self.on_exit = None

    def signal(self, number: int) -> None:
        self.is_terminated = self.is_terminated or number == signal.SIGTERM
        if number == signal.SIGKILL or not self.is_hanging:
            self.end(number)

    def resume(self) -> None:
        self.is_hanging = False
        if self.is_terminated:
            self.end(signal.SIGTERM)

    def end(self, status: int) -> None:
        """Exit with a status of waitpid."""
        if self.is_alive:
            self.is_alive = False
            if self.on_exit is not None:
                self.host.loop.call_soon(lambda: self.on_exit and self.on_exit(status))


class _Child:
    """What the agent has of a server that it has forked."""

    def __init__(self, server: Server) -> None:
        self.process, self.pidfd = server.process, server.pidfd
        self.send, self.on_message, self.close_pipe = server.send, server.register, server.close_pipe
        self.kill, self.wait = server.kill, server.wait


@dataclass
class Ports:
    """The ports of the host as an agent reserves them."""

    taken: Collection[int]  # by strangers
    reserved: set[int] = field(default_factory=set)

    def reserve(self, port: int) -> bool:
        if port not in self.taken:
            self.reserved.add(port)
        return port in self.reserved

    def lock(self, port: int) -> None:
        pass

    def owner(self, port: int) -> str:
        return "a stranger"

    def release_except(self, ports: Collection[int]) -> None:
        self.reserved.intersection_update(ports)

    def stop_listening(self) -> None:
        pass


class World:
    """The host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "demo" / HOST
        self.secrets = folder / "demo.secrets"
        self.clock, self.disk = Clock(), Disk()
        self.taken: set[int] = set()
        self.servers: list[Server] = []
        self.latest: dict[str, Server] = {}  # the latest server of each task that was released
        self.requested: set[str] = set()  # the tasks that a command might start, so that their counts begin again
        self.loop: _Loop  # of the latest agent
        self.agent: Agent | None = None
        self.state_dir = StateDir(self.folder)
        self._context: AgentContext | None = None
        self._commands: list[asyncio.Task[Any]] = []
        self._patch = pytest.MonkeyPatch()
        self._replace_system()

    def _replace_system(self) -> None:
        patch = self._patch.setattr
        for module in (supervisor_module, transitions, journal_module, cluster_handlers, context_module):
            patch(module, "time", self.clock)
        for module in (files, journal_module):
            patch(module, "os", self.disk)
        patch(subprocesses, "fork_child", self._fork)
        patch(subprocesses, "watch_exit", self._watch)
        patch(cluster_handlers, "marked_processes", lambda mark: [each.process for each in self.serving()])
        patch(context_module, "PortAllocator", partial(Ports, self.taken))
        patch(supervisor_module, "random", SimpleNamespace(random=lambda: 1.0))
        patch(supervisor_module, "prepare", lambda buffer, log: None)
        for name in ("ProcessMeter", "OomDetector"):
            patch(supervisor_module, name, lambda *arguments: None)
        patch(supervisor_module, "send_signal", self._signal)
        patch(supervisor_module, "is_stopped_by_signal", lambda pid: False)
        patch(ProcessHandle, "is_alive", lambda process: self._find(process.pid).is_alive)
        patch(ProcessHandle, "leads_session", lambda process: self._find(process.pid).is_released)
        patch(ProcessHandle, "kill", lambda process: self._find(process.pid).kill())
        patch(ProcessHandle, "open", lambda process: None)
        patch(ProbeClient, "probe", self._probe)
        for helper in (ProbeClient, LogCollector):
            for name in ("ensure_started", "start", "stop"):
                patch(helper, name, lambda helper, *arguments: None, raising=False)

    def close(self) -> None:
        """End the agent, and give the modules back what they had."""
        if self.agent is not None:
            self.die(linger=False)
        self._patch.undo()

    # The operating system, as the agent sees it.

    def _find(self, pid: int) -> Server:
        return self.servers[pid - _FIRST_PID]

    def serving(self, task: str | None = None) -> list[Server]:
        """Return the servers that run and were released, of one task or of all."""
        return [each for each in self.servers if each.is_alive and each.is_released and task in (None, each.task)]

    def _fork(self, body: partial[None], on_exit: Callable[[int | None], None], enter: object = None) -> _Child:
        if self.disk.is_dead:
            raise AgentDiedError
        task: TaskRuntime = body.args[-1]
        process = ProcessHandle(_FIRST_PID + len(self.servers), 100 * len(self.servers))
        server = Server(self, process, task.spec.name, task.spec.port, on_exit)
        self.servers.append(server)
        return _Child(server)

    def _signal(self, pidfd: int, number: int) -> None:
        if not self.disk.is_dead:
            self._find(pidfd).signal(number)

    def _watch(self, process: ProcessHandle, on_exit: Callable[[int | None], None]) -> int | None:
        server = self._find(process.pid)
        if server.is_alive:
            server.on_exit = on_exit
            return server.pidfd
        self.loop.call_soon(on_exit, None)
        return None

    async def _probe(self, address: str, timeout: float) -> ProbeResult:
        for server in self.serving():
            if address.endswith(f":{server.port}"):
                if not server.is_hanging:
                    return ProbeResult(ProbeOutcome.PROBE_OK)
                await asyncio.sleep(timeout)
                return ProbeResult(ProbeOutcome.SILENT, reason="timed out")
        return ProbeResult(ProbeOutcome.SILENT, reason="Connection refused")

    def expected_restarts(self, task: str) -> frozenset[int] | None:
        """Return the numbers of restarts that a task may have as its server starts now; None for any number."""
        before = self.latest.get(task)
        if before is None:
            return frozenset({0})
        if before.restarts is None:
            return None
        following = frozenset(number + 1 for number in before.restarts)
        return following | {0} if task in self.requested else following

    # The agent.

    @property
    def context(self) -> AgentContext:
        assert self._context is not None
        return self._context

    def is_changing(self) -> bool:
        """Whether the agent carries out a change."""
        return self.agent is not None and self.agent.dispatcher.cluster.is_changing

    def start_agent(self) -> None:
        """Start an agent, which recovers what the journal has; it may die while it does so."""
        self.loop, self.disk.is_dead = _Loop(self.clock), False
        self.state_dir = StateDir(self.folder)
        self.run(self._begin())
        self._let_unreleased_end(linger=False)
        self.settle()

    async def _begin(self) -> None:
        assert self.state_dir.lock() is None
        self._context = AgentContext(CLUSTER, HOST, self.state_dir, self.secrets)
        library: Any = SimpleNamespace(version="2.21.0")
        self._context.supervisor.tensorflow = library
        self.agent = Agent(self._context)
        await self.agent.adopt()

    def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run something of the agent to its end, however long it takes; return None if the agent dies."""
        try:
            return self.loop.run_until_complete(work)
        except AgentDiedError:
            self.die(linger=True)
            return None

    def settle(self) -> None:
        """Let the agent do what it does at once."""

        async def settle() -> None:
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)

        if self.agent is not None:
            self.run(settle())
        if self.loop.errors:
            raise self.loop.errors[0]
        for command in [each for each in self._commands if each.done()]:
            self._commands.remove(command)
            if (error := command.exception()) is not None and not isinstance(error, ClusterError):
                raise error
        if self.agent is not None and self.context.quitting.is_set():
            self._leave()

    def ask(self, response: Response[Any, T]) -> T | None:
        """Return the reply to a request; None if the agent dies."""
        reply = self.run(_reply(response))
        self.settle()
        return reply

    def command(self, response: Response[Any, Any]) -> asyncio.Task[Any]:
        """Make a request whose reply takes time."""
        task = self.loop.create_task(_reply(response))
        self._commands.append(task)
        self.settle()
        return task

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in steps, with what the agent does every few seconds."""
        for _ in range(4):
            if self.agent is not None:
                supervisor = self.context.supervisor
                if supervisor.topology is not None and not self.context.is_going_down:
                    self.run(_every_seconds(supervisor))
            if self.agent is not None:
                self.run(asyncio.sleep(seconds / 4))
                self.settle()
            else:
                self.clock.now += seconds / 4

    def die(self, *, linger: bool) -> None:
        """Kill the agent. A process that it has not released exits by itself, at once or when the next one is there."""
        self._commands, self.agent = [], None
        self.disk.is_dead, self.disk.steps_left = True, None
        self._discard_loop()
        self.state_dir.journal.close()
        self.state_dir.unlock()
        for server in self.servers:
            server.on_exit = None
        self._let_unreleased_end(linger=linger or self.disk.is_full)

    def _discard_loop(self) -> None:
        """Let Python collect the coroutines of an agent that has died; what they do as they end has no effect."""
        self.disk.is_dead = True
        tasks = asyncio.all_tasks(self.loop)
        self.loop.close()
        for coroutine in [task.get_coro() for task in tasks]:
            for _ in range(_ROUNDS):
                with suppress(BaseException):
                    cast("Any", coroutine).close()
                    break

    def _let_unreleased_end(self, *, linger: bool) -> None:
        for server in self.servers:
            is_of_dead_agent = server.is_alive and not server.is_released and server.on_exit is None
            if is_of_dead_agent and not linger:
                if not self.disk.is_full:
                    with self.disk.used_by_a_server():
                        self.state_dir.journal.note_unreleased(server.process)
                server.is_alive = False

    def _leave(self) -> None:
        """End as an agent does after `down`."""

        async def clean_up() -> None:
            self.state_dir.clean_up()

        self.run(clean_up())
        self._discard_loop()
        self.agent, self._commands = None, []
        self.latest.clear()
        self.requested.clear()

    def reboot(self, share: float, *, leaves_zeros: bool) -> None:
        """Lose the power: no process survives, and what was not synced is lost in part; then the host boots."""
        if self.agent is not None:
            self.die(linger=True)
        for server in self.servers:
            server.is_alive, server.restarts = False, None
        self.disk.lose_power(share, leaves_zeros=leaves_zeros)
        self.clock.reboot()
        path = self.state_dir.journal.path
        if path.exists():
            path.write_bytes(path.read_bytes().replace(boot_id().encode(), b"an earlier boot"))


async def _reply(response: Response[Any, T]) -> T | None:
    async for each in response:
        if isinstance(each, Reply):
            return cast("T", each.value)
    return None


async def _every_seconds(supervisor: Any) -> None:
    supervisor.check_all()
    if supervisor.journal_obstacle:
        try:
            supervisor.write_journal()
        except ClusterError:
            return
