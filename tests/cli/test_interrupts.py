"""A signal ends a command in each phase, even where Python drops the exception that the signal's handler raises."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.conftest import COMMAND, ROOT
from tests.fake_agent import WAIT as SILENCE
from tests.project import Project
from tfcluster.core.states import TaskState
from tfcluster.protocol.api.cluster import ApplyRequest, PrepareRequest

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


@pytest.mark.parametrize(
    ("phase", "sender", "signal", "code"),
    [
        (PLAN, DROPPED, "SIGINT", 130),
        (APPLY, DROPPED, "SIGINT", 130),
        (WAIT, DROPPED, "SIGTERM", 143),
        (APPLY, RAISED, "SIGINT", 130),
        (WAIT, RAISED, "SIGINT", 130),
    ],
)
def test_a_signal_ends_scale_in_each_phase(
    project: Project, phase: tuple[str, str], sender: str, signal: str, code: int
) -> None:
    project.bring_up("name: small\njobs: {worker: {tasks: 1, max: 9}}\n")
    # Each phase lasts, as a signal whose exception was dropped is sent again a little later.
    project.agent.states = {"worker:1": TaskState.STARTING}
    if phase == PLAN:
        project.agent.answer(PrepareRequest, [SILENCE])
    module, name = phase
    fault = SIGNAL.format(signal=signal, phase=name, sender=sender.format(signal=signal))
    changed = {
        "TEST_CHANGES": json.dumps({f"tfcluster.{module}": fault}),
        "PYTHONPATH": f"{ROOT / 'tests' / 'changed'}:{ROOT}",
    }
    result = subprocess.run(
        [*COMMAND, "scale", "worker=2", "--yes"],
        cwd=project.folder,
        env={**os.environ, **changed},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == code, result
    assert "is up" not in result.stdout
    assert "Traceback" not in result.stderr
    if phase != APPLY:
        assert bool(project.agent.asked(ApplyRequest)) is (phase == WAIT)
