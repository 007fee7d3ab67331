"""A child process is forked and watched, or not at all, however few descriptors are left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket

import pytest

from tests.conftest import wait_for
from tests.descriptors import free_descriptors
from tfcluster.agent.subprocesses import ChildProcess, fork_child
from tfcluster.protocol.codec import Message, encode
from tfcluster.transport.channel import readable_fds


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
    before = os.listdir("/proc/self/fd")
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
    assert set(os.listdir("/proc/self/fd")) <= set(before)  # what an earlier test has left may be collected meanwhile
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
