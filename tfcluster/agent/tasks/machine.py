"""The lifecycle of a task as a pure state machine: (machine, event, now, jitter) -> (machine, action).

The time (monotonic seconds) and the random number are arguments, so that every transition can be tested without a
clock, randomness or a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from tfcluster import settings
from tfcluster.core.states import DESIRED_RUNNING, HAS_PROCESS, TERMINAL_STATES, TaskState
from tfcluster.core.topology import RestartPolicy


class TaskEvent(Enum):
    """An event that the state machine of a task handles."""

    START = auto()  # a request to start the task
    STOP = auto()  # a request to stop the task
    RESTART = auto()  # a request to stop the task, if it runs, and to start it again
    PROBE_OK = auto()  # the task answered a health check
    PROBE_FAILED = auto()  # the task did not answer a health check
    FAILED_EXIT = auto()  # the process ended by a signal or with an exit code other than 0
    CLEAN_EXIT = auto()  # the process ended with exit code 0
    UNSTARTABLE = auto()  # the task cannot be started, and retrying would not help
    BLOCKED = auto()  # the task cannot be started now: its port is taken, the disk is full, no process can be forked
    UNSTARTED = auto()  # the previous agent died before it released the process
    TIMER = auto()  # the machine's `deadline` has passed


class Action(Enum):
    """The action that the supervisor must take after an event."""

    SPAWN = auto()
    TERMINATE = auto()
    KILL = auto()


@dataclass(frozen=True)
class TaskStateMachine:
    """The immutable state of a task, and its transitions."""

    policy: RestartPolicy
    state: TaskState = TaskState.STOPPED
    restarts: int = 0  # automatic restarts since the task was last started on request
    exit_times: tuple[float, ...] = ()  # when it exited by itself, in monotonic seconds, within the policy's window
    failed_probes: int = 0  # in a row
    deadline: float | None = None  # when the event TIMER is due, in monotonic seconds; None for no timer
    stop_timeout: float = settings.STOP_GRACE_SECONDS  # seconds between SIGTERM and SIGKILL
    restart_pending: bool = False  # whether the task is being stopped in order to be started again

    @property
    def desired_running(self) -> bool:
        """Whether the task is meant to run."""
        return self.state in DESIRED_RUNNING or self.restart_pending

    def handle(self, event: TaskEvent, now: float, jitter: float) -> tuple[TaskStateMachine, Action | None]:
        """Handle an event.

        `now` is in monotonic seconds, and `jitter` a random number from 0 to 1 for the jitter of the back-off. Return
        the machine after the event, unchanged if the event has no effect, and the action to take, if any.
        """
        if event is TaskEvent.START:
            return self._start() if self.state in TERMINAL_STATES else (self, None)
        if event is TaskEvent.STOP:
            return self._stop(now)
        if event is TaskEvent.RESTART:
            return self._restart(now)
        if event in (TaskEvent.FAILED_EXIT, TaskEvent.CLEAN_EXIT):
            return self._handle_exit(event, now, jitter) if self.state in HAS_PROCESS else (self, None)
        if event is TaskEvent.UNSTARTABLE:
            return self._fail() if self.state in HAS_PROCESS else (self, None)
        if event is TaskEvent.BLOCKED:
            return self._handle_blocked(now)
        if event is TaskEvent.UNSTARTED:
            return self, Action.SPAWN if self.state is TaskState.STARTING else None
        if event is TaskEvent.TIMER:
            return self._handle_timer(now)
        return self._handle_probe(event)

    def _start(self) -> tuple[TaskStateMachine, Action | None]:
        fresh = TaskStateMachine(self.policy, TaskState.STARTING, stop_timeout=self.stop_timeout)
        return fresh, Action.SPAWN

    def _stop(self, now: float) -> tuple[TaskStateMachine, Action | None]:
        if self.state is TaskState.STOPPING:
            # The earliest deadline of all stop requests applies, unless the task has been killed already.
            deadline = None if self.deadline is None else min(self.deadline, now + self.stop_timeout)
            return replace(self, restart_pending=False, deadline=deadline), None
        if self.state is TaskState.STOPPED:
            return self, None
        if self.state in HAS_PROCESS:
            return replace(self, state=TaskState.STOPPING, deadline=now + self.stop_timeout), Action.TERMINATE
        return replace(self, state=TaskState.STOPPED, deadline=None), None

    def _restart(self, now: float) -> tuple[TaskStateMachine, Action | None]:
        if self.state not in HAS_PROCESS:
            return self._start()
        stopping, action = self._stop(now)
        # A task that is stopping already keeps its outcome: it either stays stopped or is started again.
        return (replace(stopping, restart_pending=True), action) if action else (self, None)

    def _handle_exit(self, event: TaskEvent, now: float, jitter: float) -> tuple[TaskStateMachine, Action | None]:
        if self.restart_pending:
            return self._start()
        exited = replace(self, failed_probes=0, deadline=None)
        if self.state is TaskState.STOPPING:
            return replace(exited, state=TaskState.STOPPED), None
        if self.policy.policy == "never" or (self.policy.policy == "on-failure" and event is TaskEvent.CLEAN_EXIT):
            state = TaskState.STOPPED if event is TaskEvent.CLEAN_EXIT else TaskState.FAILED
            return replace(exited, state=state), None
        exit_times = (*(time for time in self.exit_times if time > now - self.policy.window), now)
        if len(exit_times) > self.policy.limit:
            return replace(exited, state=TaskState.FAILED, exit_times=exit_times), None
        deadline = now + _delay(self.policy, len(exit_times), jitter)
        return replace(exited, state=TaskState.BACKING_OFF, exit_times=exit_times, deadline=deadline), None

    def _fail(self) -> tuple[TaskStateMachine, Action | None]:
        state = TaskState.STOPPED if self.state is TaskState.STOPPING else TaskState.FAILED
        return replace(self, state=state, failed_probes=0, deadline=None, restart_pending=False), None

    def _handle_blocked(self, now: float) -> tuple[TaskStateMachine, Action | None]:
        """Wait before the next attempt. This says nothing about the task, so it is neither an exit nor a restart."""
        if self.state is not TaskState.STARTING:
            return self, None
        if self.policy.policy == "never":
            return replace(self, state=TaskState.FAILED), None
        deadline, restarts = now + settings.START_RETRY_SECONDS, self.restarts - bool(self.exit_times)
        return replace(self, state=TaskState.BACKING_OFF, deadline=deadline, restarts=restarts), None

    def _handle_timer(self, now: float) -> tuple[TaskStateMachine, Action | None]:
        if self.deadline is None or now < self.deadline:
            return self, None
        if self.state is TaskState.BACKING_OFF:
            restarts = self.restarts + bool(self.exit_times)  # a first start that had to wait is no restart
            return replace(self, state=TaskState.STARTING, restarts=restarts, deadline=None), Action.SPAWN
        return replace(self, deadline=None), Action.KILL

    def _handle_probe(self, event: TaskEvent) -> tuple[TaskStateMachine, Action | None]:
        if self.state not in HAS_PROCESS or self.state is TaskState.STOPPING:
            return self, None
        if event is TaskEvent.PROBE_OK:
            return replace(self, state=TaskState.READY, failed_probes=0), None
        failed_probes = self.failed_probes + 1
        # A server that is still starting has not answered yet. It is killed only if it takes far too long.
        if self.state is TaskState.STARTING:
            if failed_probes < settings.FAILED_PROBES_MAX_STARTING or self.policy.policy == "never":
                return replace(self, failed_probes=failed_probes), None
            return replace(self, failed_probes=0), Action.KILL
        if failed_probes < settings.FAILED_PROBES_MAX:
            return replace(self, failed_probes=failed_probes), None
        if self.policy.policy == "never" or failed_probes < 2 * settings.FAILED_PROBES_MAX:
            return replace(self, state=TaskState.UNRESPONSIVE, failed_probes=failed_probes), None
        return replace(self, failed_probes=0), Action.KILL


def _delay(policy: RestartPolicy, exits: int, jitter: float) -> float:
    """Return the back-off in seconds: 0 after the first exit, then `initial`, doubling up to `max`, with jitter.

    The jitter is the "equal jitter" of M. Brooker, Exponential Backoff And Jitter (AWS Architecture Blog, 2015): half
    of the delay is fixed and the other half is random. This way tasks that died together restart one after another.
    With "full jitter" a task could also restart without any delay, which would use up its restart limit quickly.

    `exits` is the number of exits within the policy's window, and `jitter` a random number from 0 to 1.
    """
    if exits <= 1:
        return 0.0
    # The exponent is limited because a float overflows at 2**1024. The delay reaches `max` long before.
    longest = min(policy.max, policy.initial * 2.0 ** min(exits - 2, 64))
    return longest * (1.0 + jitter) / 2.0
