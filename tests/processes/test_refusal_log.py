"""A forwarder and unauthorized peers: they cannot fill its log, whose reasons are readable, nor its descriptors."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.descriptors import free_descriptors
from tests.processes.forwarders import forwarding_hosts
from tests.processes.test_forwarder import ask
from tfcluster import settings
from tfcluster.processes.forwarder import ForwarderLog, accept, explain
from tfcluster.processes.logs.rotating_log import files_of


def lines(path: Path) -> list[str]:
    """The texts of the log, without times and positions."""
    return [line.split(" ", 2)[2] for file in files_of(path) for line in file.read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ForwarderLog:
    """A log whose periods do not end by themselves."""
    monkeypatch.setattr(settings, "FORWARD_LOG_SECONDS", 3600.0)
    return ForwarderLog(tmp_path / "forwarder.log")


def test_a_stranger_with_many_addresses_writes_some_lines(
    log: ForwarderLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(1000):
        log.write_connection("refused 10.0.0.0: it has no certificate")
    assert len(lines(tmp_path / "forwarder.log")) == 1, "equal lines are written once in a period"
    for number in range(1000):
        log.write_connection(f"refused 10.0.0.{number}: it has no certificate")
    log.write("about this host")
    assert len(lines(tmp_path / "forwarder.log")) == settings.FORWARD_LOG_LINES_MAX + 1
    seconds = log.expire()
    assert seconds is not None
    assert seconds > 3000
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    assert log.expire() is None
    assert lines(tmp_path / "forwarder.log")[-1] == "1,980 more lines like these in 3600 s"
    log.write_connection("refused 10.0.0.1: it has no certificate")
    assert lines(tmp_path / "forwarder.log")[-1] == "refused 10.0.0.1: it has no certificate"


def test_its_files_are_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "EVENT_LOG_FILE_BYTES", 500)
    log = ForwarderLog(tmp_path / "forwarder.log")
    for number in range(100):
        log.write(f"message {number}")
    assert len(files_of(tmp_path / "forwarder.log")) == settings.EVENT_LOG_FILES
    assert lines(tmp_path / "forwarder.log")[-1] == "message 99"


def test_a_full_disk_does_not_end_the_forwarder() -> None:
    ForwarderLog(Path("/proc/no such folder/forwarder.log")).write("lost")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "it has no certificate"),
        ("HTTP_REQUEST", "it does not speak TLS"),
        ("BAD_SIGNATURE", "TLS: bad signature"),
    ],
)
def test_reasons_are_readable(reason: str, expected: str) -> None:
    error = ssl.SSLError(1, "[SSL] something (_ssl.c:1000)")
    error.reason = reason
    assert explain(error) == expected


@pytest.mark.needs("root")
def test_silence_and_other_protocols_are_named_and_a_check_of_the_port_is_not(tmp_path: Path) -> None:
    with forwarding_hosts(tmp_path, "a", "b") as hosts:
        a, b = hosts.values()
        a.environment["TEST_SETTINGS"] = '{"LINK_CONNECT_SECONDS": 0.2}'
        b.environment["TEST_SETTINGS"] = '{"FORWARD_LOG_SECONDS": 2.0}'
        for host in hosts.values():
            host.start()
        with a.reach():
            wait_for(lambda: "refused 127.0.0.1: it has not completed its handshake within 0.2 s" in a.log)
        with b.reach():  # it says nothing, and hangs up
            pass
        cut = b.reach()
        cut.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        cut.close()
        with b.reach() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            wait_for(lambda: "refused 127.0.0.1: it does not speak TLS" in b.log)
        assert b.log.count("refused") == 1

        def counted() -> bool:
            for _ in range(3):
                ask(b, None, b.task_port)
            return "more line" in b.log

        wait_for(counted)
        assert re.search(r"\d+ more lines? like these in 2 s", b.log)


def test_without_a_descriptor_a_connection_waits_and_the_forwarder_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "FORWARD_EXHAUSTED_SECONDS", 0.25)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(False)
        with free_descriptors(0):
            before = time.monotonic()
            assert accept(listener) is None
            assert time.monotonic() - before >= 0.25
        accepted = accept(listener)
        assert accepted is not None
        assert accepted[1] == "127.0.0.1"
        accepted[0].close()
        assert accept(listener) is None
