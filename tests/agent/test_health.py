"""A broken health prober gives unknown results, and is replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.conftest import running, wait_for
from tfcluster import settings
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome, ProbeResult
from tfcluster.processes.probes import Replies


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: the prober has imported gRPC, and a server's silence is told."""
    monkeypatch.setattr(settings, "PROBE_LATE_SECONDS", 60.0)
    monkeypatch.setattr(settings, "PROBE_BROKEN_SECONDS", 60.0)


@contextmanager
def probing() -> Iterator[ProbeClient]:
    prober = ProbeClient("prober", lambda: None)
    try:
        yield prober
    finally:
        prober.stop()


async def test_a_prober_that_hangs_is_unknown_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with probing() as prober:
        prober.ensure_started()
        process = prober.process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(settings, "PROBE_BROKEN_SECONDS", 0.1)
        assert await prober.probe("localhost:1", 0.1) == ProbeResult(ProbeOutcome.UNKNOWN)
        while prober.process == process:  # its end is told by the event loop
            await asyncio.sleep(0.01)
        monkeypatch.setattr(settings, "PROBE_BROKEN_SECONDS", 60.0)
        refused = ProbeResult(ProbeOutcome.SILENT, reason="Connection refused")
        assert await prober.probe("localhost:1", 5.0) == refused, "no server listens there"


async def test_a_late_reply_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prober stands still, as the whole machine may, and goes on when the server's time is over."""
    with probing() as prober, socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        late = ProbeResult(ProbeOutcome.SILENT, reason="timed out after 0.2 s")
        assert await prober.probe(address, 0.2) == late
        assert prober.process is not None
        child = prober.process.pid
        monkeypatch.setattr(settings, "PROBE_LATE_SECONDS", 0.0)
        os.kill(child, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(0.5, os.kill, child, signal.SIGCONT)
        assert await prober.probe(address, 0.2) == ProbeResult(ProbeOutcome.UNKNOWN)


async def test_a_server_that_hangs_delays_no_answer_of_another() -> None:
    """Answers that come together are sent together."""
    with probing() as prober, socket.create_server(("127.0.0.1", 0)) as mute:
        hanging = asyncio.create_task(prober.probe(f"127.0.0.1:{mute.getsockname()[1]}", 60.0))
        await asyncio.sleep(0)  # until it is asked
        for _ in range(2):
            assert (await prober.probe("127.0.0.1:1", 30.0)).refused
        assert not hanging.done()
        hanging.cancel()


def test_replies_that_come_together_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PROBE_REPLY_SECONDS", 60.0)
    agent, prober = socket.socketpair()
    with agent, prober:
        replies = Replies(prober)
        replies.await_more(3)
        for identity in range(2):  # one of the two waits for more
            threading.Thread(target=replies.add, args=({"id": identity},), daemon=True).start()
        wait_for(lambda: replies._awaited == 1)
        agent.setblocking(False)
        with pytest.raises(BlockingIOError):
            agent.recv(1)
        replies.add({"id": 2})
        lines = agent.recv(1000).decode().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {0, 1, 2}


async def test_the_system_looks_up_the_name_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library knows more names than the resolver that gRPC brings: `127.1` stands for those of its modules."""
    monkeypatch.setenv("GRPC_DNS_RESOLVER", "ares")  # whatever the user prefers elsewhere
    with pytest.raises(socket.gaierror) as unknown:
        socket.getaddrinfo("nowhere.invalid", 1)
    with probing() as prober:
        known = await prober.probe("127.1:1", 5.0)
        assert (known.reason, known.refused) == ("Connection refused", True)
        assert (await prober.probe("nowhere.invalid:1", 20.0)).reason == unknown.value.strerror


async def test_many_concurrent_probes_all_get_a_result() -> None:
    """More than a socket's buffer holds, while the prober is still importing gRPC."""
    with probing() as prober, socket.socket() as taken:  # bound and not listening: no server answers there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answers = await asyncio.gather(*(prober.probe(address, 20.0) for _ in range(3000)))
    assert {answer.outcome for answer in answers} == {ProbeOutcome.SILENT}


SERVER = """
import sys, grpc
from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(1))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""


def connections_to(port: int) -> int:
    established = (each for each in psutil.net_connections("tcp") if each.status == "ESTABLISHED")
    return sum(each.raddr[1:] == (port,) for each in established)


async def test_a_server_that_is_not_asked_any_more_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a task that was removed, or a task of another host, which is asked only when a run starts."""
    monkeypatch.setattr(settings, "PROBE_CHANNEL_SECONDS", 0.5)
    command = [sys.executable, "-c", SERVER]
    with probing() as prober, running(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        await prober.probe(f"127.0.0.1:{port}", 10.0)  # the server does not implement this method
        assert connections_to(port) == 1
        for _ in range(100):
            await prober.probe("127.0.0.1:1", 5.0)
            if not connections_to(port):
                break
            await asyncio.sleep(0.1)
        assert connections_to(port) == 0
