"""A signal ends a command in each phase, also where Python drops the exception that the signal's handler raises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Sandbox, make_sandbox

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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with make_sandbox(tmp_path_factory.mktemp("small")) as sandbox:
        sandbox("up", sandbox.spec(SPEC))
        yield sandbox


@pytest.mark.parametrize(
    ("phase", "sender", "signal", "code"),
    [
        (PLAN, DROPPED, "SIGINT", 130),
        pytest.param(APPLY, DROPPED, "SIGINT", 130, marks=pytest.mark.slow),
        pytest.param(WAIT, DROPPED, "SIGTERM", 143, marks=pytest.mark.slow),
        pytest.param(APPLY, RAISED, "SIGINT", 130, marks=pytest.mark.slow),
        pytest.param(WAIT, RAISED, "SIGINT", 130, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_scale_in_each_phase(
    small: Sandbox, phase: tuple[str, str], sender: str, signal: str, code: int
) -> None:
    module, name = phase
    source = SIGNAL.format(signal=signal, phase=name, sender=sender.format(signal=signal))
    count = 2 + len(small.status(code=None)["tasks"]) % 8
    result = small("scale", f"worker={count}", "--yes", env=small.with_fault(f"tfcluster.{module}", source), code=code)
    assert "is up" not in result.stdout
    small("scale", f"worker={count}", "--yes")
