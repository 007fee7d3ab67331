"""A server or a health prober that a signal has stopped is replaced without the patience for busy ones."""

from __future__ import annotations

import os
import signal

import pytest

from tests.conftest import Sandbox, wait_for
from tfcluster import settings


@pytest.mark.slow
def test_a_stopped_server_is_replaced_after_half_as_many_probes(sandbox: Sandbox) -> None:
    fast = sandbox.with_settings({"HEALTH_INTERVAL_SECONDS": 0.3, "PROBE_TIMEOUT_SECONDS": 1.0})
    sandbox("up", sandbox.spec("name: frozen\njobs: {worker: {tasks: 1}}\n"), env=fast)
    pid = sandbox.task("worker:0")["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: sandbox.task("worker:0", code=None)["pid"] not in (pid, None))
    assert "it does not answer" in sandbox("events").stdout
    _, first_process, *_ = sandbox("logs", "--agent").stdout.split(" started: ")
    assert first_process.count("did not answer a probe") == settings.FAILED_PROBES_MAX


def test_a_stopped_health_prober_is_replaced_at_the_next_check(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: frozen\njobs: {worker: {tasks: 1}}\n"))
    [pid] = [pid for pid, title in sandbox.processes().items() if "health" in title]
    os.kill(pid, signal.SIGSTOP)
    sandbox.wait_for_event(f"the health prober, pid {pid}, was stopped by a signal")
    assert sandbox.wait_until("running")
