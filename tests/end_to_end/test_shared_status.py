"""Requests for the status that arrive at the same time share one, in which every change is."""

from __future__ import annotations

import os
import signal
import time

from tests.conftest import Sandbox, wait_for


def test_a_status_is_shared_until_something_changes(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: shared\njobs:\n  worker: {tasks: 2}\n")
    sandbox("up", spec, env=sandbox.with_settings({"STATUS_REUSE_SECONDS": 600.0}))
    first = sandbox.status()
    time.sleep(0.3)  # the uptime has changed
    assert sandbox.status() == first
    os.kill(first["tasks"][0]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.task("worker:0", code=None)["restarts"] == 1)
    sandbox.wait_until("running")
