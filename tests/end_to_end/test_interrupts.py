"""A signal ends a command in each phase, also where Python drops the exception that the signal's handler raises."""

from __future__ import annotations

import signal

import pytest

from tests.clusters import Cluster
from tests.conftest import Sandbox, wait_for

SPEC = "name: small\njobs:\n  worker: {tasks: 1, max: 9}\n"
# Sends a signal as a phase begins: in the function itself, or in a finalizer, whose exceptions Python drops.
SIGNAL = """
import signal

class Finalizer:
    def __del__(self):
        signal.raise_signal(signal.{signal})

inner = {phase}

def {phase}(*args, **options):
    {sender}
    return inner(*args, **options)
"""
RAISED, DROPPED = "signal.raise_signal(signal.{signal})", "Finalizer()"
PLAN, APPLY, WAIT = ("client.up", "plan_scale"), ("client.up", "apply"), ("client.readiness", "watch_until_ready")


CLUSTER = Cluster(SPEC)


def fault(phase: tuple[str, str], sender: str, signal: str) -> tuple[str, str]:
    """A module, and the fault that sends a signal as a phase begins."""
    module, name = phase
    return f"tfcluster.{module}", SIGNAL.format(signal=signal, phase=name, sender=sender.format(signal=signal))


def test_a_signal_before_a_change_ends_scale_and_changes_nothing(demo: Sandbox) -> None:
    before = demo.tasks("pid")
    demo("scale", "worker=3", "--yes", env=demo.with_fault(*fault(PLAN, DROPPED, "SIGINT")), code=130)
    assert demo.tasks("pid") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "sender", "signal", "code"),
    [
        (APPLY, DROPPED, "SIGINT", 130),
        (WAIT, DROPPED, "SIGTERM", 143),
        (APPLY, RAISED, "SIGINT", 130),
        (WAIT, RAISED, "SIGINT", 130),
    ],
)
def test_a_signal_ends_scale_in_each_phase(
    cluster: Sandbox, phase: tuple[str, str], sender: str, signal: str, code: int
) -> None:
    count = 2 + len(cluster.status(code=None)["tasks"]) % 8
    env = cluster.with_fault(*fault(phase, sender, signal))
    result = cluster("scale", f"worker={count}", "--yes", env=env, code=code)
    assert "is up" not in result.stdout
    cluster("scale", f"worker={count}", "--yes")


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
