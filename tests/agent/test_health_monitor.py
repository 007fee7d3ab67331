"""A broken health prober gives unknown results, and is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import running
from tfcluster import settings
from tfcluster.agent.tasks.health import ProbeClient, ProbeOutcome, ProbeResult


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: the prober has imported gRPC, and a server's silence is told."""
    monkeypatch.setattr(settings, "PROBE_LATE_SECONDS", 60.0)
    monkeypatch.setattr(settings, "PROBE_BROKEN_SECONDS", 60.0)


def test_a_port_without_a_listener_is_silent() -> None:
    async def ask() -> ProbeResult:
        prober = ProbeClient("prober", lambda: None)
        try:
            return await prober.probe("localhost:1", 5.0)
        finally:
            prober.stop()

    assert asyncio.run(ask()) == ProbeResult(ProbeOutcome.SILENT, refused=True)


def test_a_prober_that_hangs_is_unknown_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask_twice() -> tuple[ProbeResult, int, ProbeResult, int]:
        prober = ProbeClient("prober", lambda: None)
        prober.ensure_started()
        process = prober.process
        assert process is not None
        first = process.pid
        os.kill(first, signal.SIGSTOP)
        monkeypatch.setattr(settings, "PROBE_BROKEN_SECONDS", 0.1)
        hanging = await prober.probe("localhost:1", 0.1)
        while prober.process == process:  # its end is told by the event loop
            await asyncio.sleep(0.01)
        monkeypatch.setattr(settings, "PROBE_BROKEN_SECONDS", 60.0)
        try:
            again = await prober.probe("localhost:1", 5.0)
            assert prober.process is not None
            return hanging, first, again, prober.process.pid
        finally:
            prober.stop()

    hanging, first, again, second = asyncio.run(ask_twice())
    assert hanging == ProbeResult(ProbeOutcome.UNKNOWN)
    assert again == ProbeResult(ProbeOutcome.SILENT, refused=True)
    assert first != second


def test_a_late_reply_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prober stands still, as the whole machine may, and goes on when the server's time is over."""

    async def ask() -> tuple[ProbeResult, ProbeResult]:
        prober = ProbeClient("prober", lambda: None)
        try:
            with socket.socket() as mute:  # takes connections and says nothing
                mute.bind(("127.0.0.1", 0))
                mute.listen()
                address = f"127.0.0.1:{mute.getsockname()[1]}"
                in_time = await prober.probe(address, 0.2)
                assert prober.process is not None
                child = prober.process.pid
                monkeypatch.setattr(settings, "PROBE_LATE_SECONDS", 0.0)
                os.kill(child, signal.SIGSTOP)
                asyncio.get_running_loop().call_later(0.5, os.kill, child, signal.SIGCONT)
                return in_time, await prober.probe(address, 0.2)
        finally:
            prober.stop()

    assert asyncio.run(ask()) == (ProbeResult(ProbeOutcome.SILENT), ProbeResult(ProbeOutcome.UNKNOWN))


def test_many_concurrent_probes_all_get_a_result() -> None:
    """More than a socket's buffer holds, while the prober is still importing gRPC."""

    async def ask_many() -> list[ProbeResult]:
        prober = ProbeClient("prober", lambda: None)
        try:
            with socket.socket() as taken:  # bound and not listening: no server answers there
                taken.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{taken.getsockname()[1]}"
                return await asyncio.gather(*(prober.probe(address, 20.0) for _ in range(3000)))
        finally:
            prober.stop()

    assert {answer.outcome for answer in asyncio.run(ask_many())} == {ProbeOutcome.SILENT}


SERVER = """
import sys, grpc
from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(1))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""


def connections_to(port: int) -> int:
    """The established connections to a port of this machine."""
    lines = "".join(Path(f"/proc/net/{table}").read_text() for table in ("tcp", "tcp6")).splitlines()
    return sum(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


def test_a_server_that_is_not_asked_any_more_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a task that was removed, or a task of another host, which is asked only when a run starts."""
    monkeypatch.setattr(settings, "PROBE_CHANNEL_SECONDS", 0.5)

    async def ask(port: int) -> tuple[int, int]:
        prober = ProbeClient("prober", lambda: None)
        try:
            await prober.probe(f"127.0.0.1:{port}", 10.0)  # the server does not implement this method
            connected = connections_to(port)
            for _ in range(100):
                await prober.probe("127.0.0.1:1", 5.0)
                if not connections_to(port):
                    break
                await asyncio.sleep(0.1)
            return connected, connections_to(port)
        finally:
            prober.stop()

    with running(sys.executable, "-c", SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert asyncio.run(ask(int(server.stdout.readline()))) == (1, 0)
