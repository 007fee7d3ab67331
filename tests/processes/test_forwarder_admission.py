"""Connections that reach a forwarder which has no descriptor left."""

from __future__ import annotations

import socket
import time

import pytest

from tests.descriptors import free_descriptors
from tfcluster import settings
from tfcluster.processes.forwarder import accept


def test_without_a_descriptor_a_connection_waits_and_the_forwarder_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "FORWARD_EXHAUSTED_SECONDS", 0.25)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
    ):
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
