"""A helper process is forked once, restarted, replaced if it is stopped, adopted by a later agent, and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.descriptors import free_descriptors
from tfcluster import settings
from tfcluster.agent.subprocesses import HelperProcess
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.codec import Message, encode


@pytest.fixture(autouse=True)
def no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settings, "HELPER_RESTART_SECONDS", 0.01)
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


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
    await asyncio.sleep(0.05)
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
    helper.stop()
    await asyncio.sleep(0.1)
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
    await asyncio.sleep(0.1)
    assert helper.messages == []
    helper.release()
    helper.release()
    await until(lambda: helper.messages)
    await asyncio.sleep(0.05)
    assert [message["text"] for message in helper.messages] == ["begun"]
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
