"""An interrupt reaches a run, however early; tests/cli/test_interrupts.py has the phases of a command."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import Sandbox, wait_for

SPEC = "name: small\njobs:\n  worker: {tasks: 1, max: 9}\n"

_LATE_DRIVER = """
import time
inner = main

def main(*args):
    time.sleep(2)
    return inner(*args)
"""


@pytest.mark.slow
def test_an_interrupt_that_reaches_a_driver_that_was_just_forked_interrupts_its_run(sandbox: Sandbox) -> None:
    fault = sandbox.with_fault("tfcluster.processes.runs.run_driver", _LATE_DRIVER)
    sandbox("up", sandbox.spec(SPEC), env=fault)
    command = sandbox.start("run", sandbox.spec("import time\ntime.sleep(600)\n", "sleeps.py"))
    wait_for(lambda: [run["state"] for run in sandbox.json("runs")] == ["running"])
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=60)
    assert command.returncode == 130
    assert [run["state"] for run in sandbox.json("runs")] == ["cancelled"]
