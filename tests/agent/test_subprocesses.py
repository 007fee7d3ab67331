"""A child process is forked and watched, or not at all; helpers are restarted, adopted, stopped; commands are ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import wait_for
from tests.descriptors import free_descriptors
from tfcluster import settings
from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.agent.handlers.access import AccessHandlers
from tfcluster.agent.subprocesses import ChildProcess, HelperProcess, fork_child
from tfcluster.errors import ClusterError
from tfcluster.os import netns, procfs
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.api.cluster import ExecRequest
from tfcluster.protocol.codec import Message, encode
from tfcluster.transport.channel import readable_fds


@pytest.fixture(autouse=True)
def no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settings, "HELPER_RESTART_SECONDS", 0.01)
    before = os.listdir("/proc/self/fd")
    yield
    assert set(os.listdir("/proc/self/fd")) <= set(before)  # those of an earlier test may be closed only now


class Helper(HelperProcess):
    """Says `begun`, and then each message that it gets."""

    def __init__(self) -> None:
        super().__init__("a helper")
        self.messages: list[Message] = []
        self.exits = 0

    def run(self, agent: socket.socket) -> None:
        agent.sendall(encode({"text": "begun"}))
        while data := agent.recv(1000):
            agent.sendall(data)

    def handle_message(self, message: Message) -> None:
        self.messages.append(message)

    def handle_exit(self) -> None:
        self.exits += 1


class Lasting(Helper):
    outlives_agent = True
    restarts = True


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def until_reaped(pid: int) -> None:
    """Wait until the event loop has read that a child has exited, which can come after the end of its connection."""
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


def pid_of(helper: HelperProcess) -> int:
    assert helper.process is not None
    return helper.process.pid


async def test_it_is_forked_at_the_first_message_and_after_its_exit() -> None:
    helper = Helper()
    helper.send({"text": "one"})
    first = pid_of(helper)
    helper.ensure_started()
    assert pid_of(helper) == first
    await until(lambda: len(helper.messages) == 2)
    helper.kill()
    await until(lambda: helper.exits)
    assert helper.process is None
    helper.send({"text": "two"})
    assert pid_of(helper) != first
    await until(lambda: len(helper.messages) == 4)
    assert [message["text"] for message in helper.messages] == ["begun", "one", "begun", "two"]
    helper.stop()
    assert helper.process is None
    other = Helper()
    other.ensure_started()
    last = pid_of(other)
    other.kill()
    await until(lambda: other.exits)
    await until_reaped(last)
    assert helper.exits == 1, "it was told to stop"


async def test_one_that_restarts_is_forked_again_when_it_dies_or_is_stopped_by_a_signal() -> None:
    helper = Lasting()
    helper.start_later(0.0)
    await until(lambda: helper.process is not None)
    first = pid_of(helper)
    assert helper.kill_if_stopped() is None
    os.kill(first, signal.SIGSTOP)
    await until(lambda: helper.kill_if_stopped() == first)
    await until(lambda: helper.process is not None and pid_of(helper) != first)
    await until_reaped(first)
    helper.stop()
    other = Lasting()
    other.ensure_started()
    first = pid_of(other)
    other.kill()
    await until(lambda: other.process is not None and pid_of(other) != first)
    await until_reaped(first)
    other.stop()
    assert helper.process is None, "it is not started again"


async def test_one_that_cannot_be_forked_is_tried_again_and_one_that_cannot_be_watched_is_not_adopted() -> None:
    helper, process = Helper(), ProcessHandle.from_pid(os.getpid())
    assert process is not None
    with free_descriptors(1), pytest.raises(OSError, match="Too many open files"):
        helper.watch(process)
    assert helper.process is None
    with free_descriptors(1):
        helper.start_or_retry()
        assert helper.process is None
    await until(lambda: helper.process is not None)
    helper.stop()


async def test_one_that_outlives_the_agent_begins_when_it_is_released() -> None:
    helper = Lasting()
    helper.ensure_started()
    await until(lambda: procfs.stat_fields(pid_of(helper))[0] == "S")
    assert helper.messages == []
    helper.release()
    await until(lambda: helper.messages)
    helper.release()
    helper.send({"text": "more"})  # a second release would be returned before it
    await until(lambda: len(helper.messages) > 1)
    assert [message["text"] for message in helper.messages] == ["begun", "more"]
    helper.stop()


@pytest.mark.parametrize("is_released", [True, False])
def test_a_later_agent_adopts_what_was_released(is_released: bool, tmp_path: Path) -> None:
    record = tmp_path / "process"

    class Sleeper(Lasting):
        def run(self, agent: socket.socket) -> None:
            record.write_text("begun")
            signal.pause()

    async def earlier_agent() -> None:
        helper = Sleeper()
        helper.ensure_started()
        (tmp_path / "pid").write_text(str(pid_of(helper)))
        if is_released:
            helper.release()
            await until(record.exists)
        os._exit(0)

    if (agent := os.fork()) == 0:
        asyncio.run(earlier_agent())
    os.waitpid(agent, 0)
    pid = int((tmp_path / "pid").read_text())
    if not is_released:
        wait_for(lambda: not Path(f"/proc/{pid}").exists())
        return
    process = ProcessHandle.from_pid(pid)
    assert process is not None

    async def later_agent() -> None:
        helper = Sleeper()
        helper.watch(process)
        helper.ensure_started()
        assert pid_of(helper) == pid
        helper.kill()
        await until(lambda: helper.exits)
        await until(lambda: helper.process is not None and pid_of(helper) != pid)
        helper.stop()

    asyncio.run(later_agent())


def end_with_3(agent: socket.socket) -> None:
    os._exit(3)


def speak_and_wait(agent: socket.socket) -> None:
    agent.send(b"something")
    agent.recv(1)


def wait(agent: socket.socket) -> None:
    agent.recv(1)


@pytest.mark.parametrize("free", range(6))
async def test_with_few_descriptors_a_fork_succeeds_or_leaves_nothing(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[int] = []
    fork_it = os.fork

    def remember() -> int:
        forked.append(fork_it())
        return forked[-1]

    monkeypatch.setattr(os, "fork", remember)
    exit_report = asyncio.get_running_loop().create_future()
    if free < 3:
        with free_descriptors(free), pytest.raises(OSError, match="Too many open files"):
            fork_child(end_with_3, exit_report.set_result)
    else:
        with free_descriptors(free):
            child = fork_child(end_with_3, exit_report.set_result)
        assert await exit_report == 3 << 8
        assert child.pidfd is None
        child.kill()  # sends nothing to the process that has its pid or its descriptor now
        child.wait()
        child.close_pipe()
    for pid in forked:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_is_stopped_distinguishes_stopped_running_and_exited_children() -> None:
    ended = asyncio.get_running_loop().create_future()
    child = fork_child(wait, ended.set_result)
    assert not child.is_stopped()
    os.kill(child.process.pid, signal.SIGSTOP)
    wait_for(child.is_stopped)
    assert child.is_stopped(), "to look changes nothing"
    os.kill(child.process.pid, signal.SIGCONT)
    wait_for(lambda: not child.is_stopped())
    child.kill()
    wait_for(lambda: not child.process.is_alive())
    assert not child.is_stopped(), "the event loop has not told of its end yet"
    assert os.WTERMSIG(await ended) == signal.SIGKILL
    assert not child.is_stopped()
    child.close_pipe()


async def test_a_child_exits_silently_when_the_agent_dies_with_unread_data(capfd: pytest.CaptureFixture[str]) -> None:
    ended = asyncio.get_running_loop().create_future()
    child = fork_child(speak_and_wait, ended.set_result)
    assert readable_fds([child._link.fileno()], 60)
    child.close_pipe()  # as the kernel does for a process that ends
    assert os.WEXITSTATUS(await ended) == 1
    assert capfd.readouterr().err == ""


async def test_reaping_a_child_does_not_call_its_exit_callback() -> None:
    exit_report: list[int] = []
    child: ChildProcess = fork_child(wait, exit_report.append)
    child.kill()
    child.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(child.process.pid, signal.SIGKILL)
    await asyncio.sleep(0)
    child.close_pipe()
    assert exit_report == []


async def test_a_child_has_no_objects_of_the_agent_to_collect_and_none_of_its_signal_handlers() -> None:
    """A destroyed socket of the agent would close whatever has its number in the child."""

    def report(agent: socket.socket) -> None:
        facts = {
            "collectable": any(isinstance(each, Canary) for each in gc.get_objects()),
            "enabled": gc.isenabled(),
            "handlers": [signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)],
            "wakeup": signal.set_wakeup_fd(-1),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        }
        agent.send(encode(facts))

    class Canary:
        """Refers to itself, so that only the collector destroys it, as a socket that the event loop has forgotten."""

        def __init__(self) -> None:
            self.itself = self

    gc.collect()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: None)
    message: asyncio.Future[Message] = loop.create_future()
    Canary()
    child = fork_child(report, lambda status: None)
    child.on_message(message.set_result, lambda: None)
    facts = await message
    child.wait()
    expected = {"collectable": False, "enabled": True, "handlers": [True, True], "wakeup": -1, "blocked": []}
    assert facts == expected
    assert gc.isenabled()


async def test_nothing_is_left_of_a_network_that_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(netns, "make_namespaces", refuse)
    before = len(os.listdir("/proc/self/fd"))
    network = ClusterNetwork("holder", lambda: None)
    with pytest.raises(ClusterError):
        network.make()
    while len(os.listdir("/proc/self/fd")) > before:  # until the exit of the holder is noticed
        await asyncio.sleep(0.01)
    network.leave()


@pytest.mark.parametrize(("on_sigterm", "seconds", "output"), [("echo ends; exit", 60.0, "ends\n"), ("", 0.5, "")])
async def test_a_command_gets_sigterm_and_then_sigkill(
    on_sigterm: str, seconds: float, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "EXEC_TERMINATE_SECONDS", seconds)
    context: Any = SimpleNamespace(quitting=asyncio.Event())
    handlers = AccessHandlers(context)
    script = f"trap '{on_sigterm}' TERM; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        command = ProcessHandle.from_pid(process.pid)
        assert command is not None
        waiting = asyncio.ensure_future(anext(aiter(handlers.exec(ExecRequest("the id")))))
        await asyncio.sleep(0)
        handlers._commands["the id"].watch(process.pid)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        try:
            wait_for(lambda: not command.is_alive(), seconds=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout.read() == output
