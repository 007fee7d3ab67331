"""The state machine of a run: every phase and event, and the number of fork servers that are asked for a driver."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.agent.runs.state_machine import _TRANSITIONS, RunAction, RunMachineEvent, RunPhase, RunStateMachine

# The phase after each event and the actions that it requests; `.` is an event without an effect.
_TABLE = """
           START             DRIVER_STARTED DRIVER_FOUND        NO_DRIVER           DRIVER_EXITED
SUBMITTED  REQUESTED+REQUEST .              .                   .                   .
REQUESTED  .                 RUNNING        RUNNING+WATCH       FINALIZING+FINALIZE FINALIZING+FINALIZE
RUNNING    .                 .              RUNNING+WATCH       FINALIZING+FINALIZE FINALIZING+FINALIZE
CLAIMING   .                 .              STOPPING+WATCH+TERM FINALIZING+FINALIZE .
STOPPING   .                 .              STOPPING+WATCH      FINALIZING+FINALIZE FINALIZING+FINALIZE
KILLED     .                 .              KILLED+WATCH        FINALIZING+FINALIZE FINALIZING+FINALIZE
FINALIZING .                 .              .                   .                   .
ENDED      .                 .              .                   .                   .

           FORK_SERVER_EXITED CANCEL                FAIL                  TIMEOUT                          FINALIZED
SUBMITTED  .                  CLAIMING+RECORD+CLAIM CLAIMING+RECORD+CLAIM .                                .
REQUESTED  REQUESTED+REQUEST  CLAIMING+RECORD+CLAIM CLAIMING+RECORD+CLAIM CLAIMING+RECORD+KILL_SERVER+CLAIM .
RUNNING    RUNNING+CLAIM      STOPPING+RECORD+TERM  STOPPING+RECORD+TERM  .                                .
CLAIMING   CLAIMING+CLAIM     .                     .                     .                                .
STOPPING   STOPPING+CLAIM     .                     .                     KILLED+KILL                      .
KILLED     KILLED+CLAIM       .                     .                     KILLED+KILL_SERVER               .
FINALIZING .                  .                     FINALIZING+RECORD     .                                ENDED
ENDED      .                  .                     .                     .                                .
"""
_ACTIONS = {
    "REQUEST": RunAction.REQUEST_DRIVER,
    "CLAIM": RunAction.CLAIM,
    "WATCH": RunAction.WATCH,
    "RECORD": RunAction.RECORD_STOP,
    "TERM": RunAction.TERMINATE,
    "KILL": RunAction.KILL,
    "KILL_SERVER": RunAction.KILL_FORK_SERVER,
    "FINALIZE": RunAction.FINALIZE,
}
#: The events that come by themselves, and those with which the manager answers an action.
_EXTERNAL = [
    event
    for event in RunMachineEvent
    if event not in (RunMachineEvent.DRIVER_FOUND, RunMachineEvent.NO_DRIVER, RunMachineEvent.FINALIZED)
]


def _rows() -> list[tuple[RunPhase, RunMachineEvent, str]]:
    parts = [[line.split() for line in part.splitlines() if line] for part in _TABLE.split("\n\n")]
    return [
        (RunPhase[phase], RunMachineEvent[event], cell)
        for head, *lines in parts
        for phase, *cells in lines
        for event, cell in zip(head, cells, strict=True)
    ]


def test_the_table_has_every_phase_and_every_event() -> None:
    rows = [(phase, event) for phase, event, _ in _rows()]
    assert len(rows) == len(set(rows))
    assert set(rows) == set(product(RunPhase, RunMachineEvent))
    assert set(_TRANSITIONS) == set(RunPhase)


@pytest.mark.parametrize(("phase", "event", "cell"), _rows())
def test_every_phase_and_event(phase: RunPhase, event: RunMachineEvent, cell: str) -> None:
    before = RunStateMachine(phase)
    after, actions = before.handle(event)
    if cell == ".":
        assert (after, actions) == (before, ())
        return
    expected, *names = cell.split("+")
    assert after.phase is RunPhase[expected]
    assert actions == tuple(_ACTIONS[name] for name in names)


@given(events=st.lists(st.sampled_from(_EXTERNAL), max_size=30), has_driver=st.booleans())
def test_a_stopped_run_ends_once(events: list[RunMachineEvent], has_driver: bool) -> None:
    """Whatever happens, a run that is cancelled ends when its driver has exited, and is finalized exactly once."""
    machine, finalized = RunStateMachine(), 0

    def feed(event: RunMachineEvent) -> None:
        nonlocal machine, finalized
        machine, actions = machine.handle(event)
        for action in actions:
            if action is RunAction.CLAIM:
                feed(RunMachineEvent.DRIVER_FOUND if has_driver else RunMachineEvent.NO_DRIVER)
            finalized += action is RunAction.FINALIZE

    for event in (*events, RunMachineEvent.CANCEL, RunMachineEvent.DRIVER_EXITED, RunMachineEvent.FINALIZED):
        feed(event)
        assert machine.phase is not RunPhase.CLAIMING, "the manager has answered"
    assert machine.phase is RunPhase.ENDED
    assert finalized == 1
