"""The lifecycle of a run as a pure state machine: a table of (phase, event) -> (phase, actions).

The manager feeds the events and takes the actions. Some actions have a result, which the manager feeds as the
next event: CLAIM is followed by DRIVER_FOUND or NO_DRIVER, FINALIZE by FINALIZED.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from tfcluster import settings


class RunPhase(Enum):
    """The phase of a run, in more detail than the state that users see."""

    SUBMITTED = auto()  # recorded; the file uploaded with it may be incomplete
    REQUESTED = auto()  # a fork server was asked for a driver
    RUNNING = auto()  # a driver executes the program
    CLAIMING = auto()  # being stopped; it is not known yet whether a driver has started
    STOPPING = auto()  # the driver was asked to exit (SIGTERM)
    KILLED = auto()  # the driver was killed (SIGKILL), as it did not exit in time
    FINALIZING = auto()  # the driver has exited, or none will start; the agent cleans up
    ENDED = auto()  # the final record is complete


class RunMachineEvent(Enum):
    """An event that the state machine of a run handles."""

    START = auto()  # a driver may start: nothing more has to be uploaded
    DRIVER_STARTED = auto()  # the fork server reports the driver that it has forked
    DRIVER_FOUND = auto()  # the claim in the run's folder names a driver
    NO_DRIVER = auto()  # no driver has claimed the run, and none can any more
    DRIVER_EXITED = auto()  # the driver has exited
    FORK_SERVER_EXITED = auto()  # the fork server that would report the driver's exit has exited
    CANCEL = auto()  # a request to stop the run
    FAIL = auto()  # the run cannot continue, because of an error
    TIMEOUT = auto()  # the time limit of the phase has passed
    FINALIZED = auto()  # the agent has cleaned up


class RunAction(Enum):
    """An action that the manager must take after an event."""

    REQUEST_DRIVER = auto()  # ask the fork server for a driver
    CLAIM = auto()  # claim the run for no driver, unless a driver has claimed it
    WATCH = auto()  # watch the driver that the claim names
    RECORD_STOP = auto()  # record why the run is being stopped, unless a reason is recorded already
    TERMINATE = auto()  # send SIGTERM to the driver
    KILL = auto()  # send SIGKILL to the driver
    KILL_FORK_SERVER = auto()  # kill the fork server, which does not do its work
    FINALIZE = auto()  # clean up, and write the final record


_Transition = tuple[RunPhase, tuple[RunAction, ...]]

_STOP_BEFORE_DRIVER: _Transition = (RunPhase.CLAIMING, (RunAction.RECORD_STOP, RunAction.CLAIM))
_STOP_DRIVER: _Transition = (RunPhase.STOPPING, (RunAction.RECORD_STOP, RunAction.TERMINATE))
_FINALIZE: _Transition = (RunPhase.FINALIZING, (RunAction.FINALIZE,))

# An event that is not listed for a phase has no effect in it.
_TRANSITIONS: Mapping[RunPhase, Mapping[RunMachineEvent, _Transition]] = {
    RunPhase.SUBMITTED: {
        RunMachineEvent.START: (RunPhase.REQUESTED, (RunAction.REQUEST_DRIVER,)),
        RunMachineEvent.CANCEL: _STOP_BEFORE_DRIVER,
        RunMachineEvent.FAIL: _STOP_BEFORE_DRIVER,
    },
    RunPhase.REQUESTED: {
        RunMachineEvent.DRIVER_STARTED: (RunPhase.RUNNING, ()),
        RunMachineEvent.DRIVER_FOUND: (RunPhase.RUNNING, (RunAction.WATCH,)),
        RunMachineEvent.NO_DRIVER: _FINALIZE,
        RunMachineEvent.DRIVER_EXITED: _FINALIZE,
        RunMachineEvent.FORK_SERVER_EXITED: (RunPhase.REQUESTED, (RunAction.REQUEST_DRIVER,)),  # see `handle`
        RunMachineEvent.CANCEL: _STOP_BEFORE_DRIVER,
        RunMachineEvent.FAIL: _STOP_BEFORE_DRIVER,
        RunMachineEvent.TIMEOUT: (
            RunPhase.CLAIMING,
            (RunAction.RECORD_STOP, RunAction.KILL_FORK_SERVER, RunAction.CLAIM),
        ),
    },
    RunPhase.RUNNING: {
        RunMachineEvent.DRIVER_FOUND: (RunPhase.RUNNING, (RunAction.WATCH,)),
        RunMachineEvent.NO_DRIVER: _FINALIZE,
        RunMachineEvent.DRIVER_EXITED: _FINALIZE,
        RunMachineEvent.FORK_SERVER_EXITED: (RunPhase.RUNNING, (RunAction.CLAIM,)),
        RunMachineEvent.CANCEL: _STOP_DRIVER,
        RunMachineEvent.FAIL: _STOP_DRIVER,
    },
    RunPhase.CLAIMING: {
        RunMachineEvent.DRIVER_FOUND: (RunPhase.STOPPING, (RunAction.WATCH, RunAction.TERMINATE)),
        RunMachineEvent.NO_DRIVER: _FINALIZE,
        RunMachineEvent.FORK_SERVER_EXITED: (RunPhase.CLAIMING, (RunAction.CLAIM,)),
    },
    RunPhase.STOPPING: {
        RunMachineEvent.DRIVER_FOUND: (RunPhase.STOPPING, (RunAction.WATCH,)),
        RunMachineEvent.NO_DRIVER: _FINALIZE,
        RunMachineEvent.DRIVER_EXITED: _FINALIZE,
        RunMachineEvent.FORK_SERVER_EXITED: (RunPhase.STOPPING, (RunAction.CLAIM,)),
        RunMachineEvent.TIMEOUT: (RunPhase.KILLED, (RunAction.KILL,)),
    },
    RunPhase.KILLED: {
        RunMachineEvent.DRIVER_FOUND: (RunPhase.KILLED, (RunAction.WATCH,)),
        RunMachineEvent.NO_DRIVER: _FINALIZE,
        RunMachineEvent.DRIVER_EXITED: _FINALIZE,
        RunMachineEvent.FORK_SERVER_EXITED: (RunPhase.KILLED, (RunAction.CLAIM,)),
        RunMachineEvent.TIMEOUT: (RunPhase.KILLED, (RunAction.KILL_FORK_SERVER,)),
    },
    RunPhase.FINALIZING: {
        # A driver may have failed because of a lost task before the agent noticed the loss, which is the real reason.
        RunMachineEvent.FAIL: (RunPhase.FINALIZING, (RunAction.RECORD_STOP,)),
        RunMachineEvent.FINALIZED: (RunPhase.ENDED, ()),
    },
    RunPhase.ENDED: {},
}


@dataclass(frozen=True)
class RunStateMachine:
    """The immutable state of a run, and its transitions.

    A run that an earlier agent started begins in RUNNING, or in CLAIMING if it was being stopped; FORK_SERVER_EXITED
    then leads to its driver, or to its end if it has none.
    """

    phase: RunPhase = RunPhase.SUBMITTED
    driver_requests: int = 0  # fork servers that were asked for the run's driver

    def handle(self, event: RunMachineEvent) -> tuple[RunStateMachine, tuple[RunAction, ...]]:
        """Handle an event.

        Return the machine after the event, unchanged if the event has no effect, and the actions to take, in order.
        """
        phase, actions = _TRANSITIONS[self.phase].get(event, (self.phase, ()))
        if RunAction.REQUEST_DRIVER not in actions:
            return replace(self, phase=phase), actions
        if self.driver_requests == settings.RUN_FORK_SERVERS:
            return self, (RunAction.CLAIM,)
        return RunStateMachine(phase, self.driver_requests + 1), actions
