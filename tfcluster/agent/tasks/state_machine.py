"""The lifecycle of a task as a pure state machine: (machine, event, now, chance) -> (machine, action).

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
    BLOCKED = auto()  # another process uses the task's port
    UNSTARTED = auto()  # the previous agent died before it released the process
    TIMER = auto()  # the machine's `wake_at` has passed


class Action(Enum):
    """The action that the supervisor must take after an event."""

    SPAWN = auto()
    TERMINATE = auto()
    KILL = auto()


@dataclass(frozen=True)
class TaskStateMachine:
    """The immutable state of a task, and its transitions.

    Attributes:
        policy: The restart policy of the task.
        state: The task's state.
        restarts: Number of automatic restarts since the task was last started on request.
        ends: Times, in monotonic seconds, at which the task exited by itself, within the policy's window.
        misses: Number of failed probes in a row.
        wake_at: When the event TIMER is due, in monotonic seconds; None for no timer.
        grace: Seconds between SIGTERM and SIGKILL when the task is stopped.
        again: Whether the task is being stopped in order to be started again.
    """

    policy: RestartPolicy
    state: TaskState = TaskState.STOPPED
    restarts: int = 0
    ends: tuple[float, ...] = ()
    misses: int = 0
    wake_at: float | None = None
    grace: float = settings.STOP_GRACE_SECONDS
    again: bool = False

    @property
    def wanted(self) -> bool:
        """Whether the task is meant to run."""
        return self.state in DESIRED_RUNNING or self.again

    def after(self, event: TaskEvent, now: float, chance: float) -> tuple[TaskStateMachine, Action | None]:
        """Handle an event.

        Args:
            event: The event.
            now: The current time, in monotonic seconds.
            chance: A random number from 0 to 1, for the jitter of the back-off.

        Returns:
            The machine after the event, unchanged if the event has no effect, and the action to take, if any.
        """
        if event is TaskEvent.START:
            return self._start() if self.state in TERMINAL_STATES else (self, None)
        if event is TaskEvent.STOP:
            return self._stop(now)
        if event is TaskEvent.RESTART:
            return self._restart(now)
        if event in (TaskEvent.FAILED_EXIT, TaskEvent.CLEAN_EXIT):
            return self._ended(event, now, chance) if self.state in HAS_PROCESS else (self, None)
        if event is TaskEvent.UNSTARTABLE:
            return self._give_up() if self.state in HAS_PROCESS else (self, None)
        if event is TaskEvent.BLOCKED:
            return self._blocked(now, chance)
        if event is TaskEvent.UNSTARTED:
            return self, Action.SPAWN if self.state is TaskState.STARTING else None
        if event is TaskEvent.TIMER:
            return self._due(now)
        return self._checked(event)

    def _start(self) -> tuple[TaskStateMachine, Action | None]:
        fresh = TaskStateMachine(self.policy, TaskState.STARTING, grace=self.grace)
        return fresh, Action.SPAWN

    def _stop(self, now: float) -> tuple[TaskStateMachine, Action | None]:
        if self.state is TaskState.STOPPING:
            # The earliest deadline of all stop requests applies, unless the task has been killed already.
            wake_at = None if self.wake_at is None else min(self.wake_at, now + self.grace)
            return replace(self, again=False, wake_at=wake_at), None
        if self.state is TaskState.STOPPED:
            return self, None
        if self.state in HAS_PROCESS:
            return replace(self, state=TaskState.STOPPING, wake_at=now + self.grace), Action.TERMINATE
        return replace(self, state=TaskState.STOPPED, wake_at=None), None

    def _restart(self, now: float) -> tuple[TaskStateMachine, Action | None]:
        if self.state not in HAS_PROCESS:
            return self._start()
        stopping, action = self._stop(now)
        # A task that is stopping already keeps its outcome: it either stays stopped or is started again.
        return (replace(stopping, again=True), action) if action else (self, None)

    def _ended(self, event: TaskEvent, now: float, chance: float) -> tuple[TaskStateMachine, Action | None]:
        if self.again:
            return self._start()
        ended = replace(self, misses=0, wake_at=None)
        if self.state is TaskState.STOPPING:
            return replace(ended, state=TaskState.STOPPED), None
        if self.policy.policy == "never" or (self.policy.policy == "on-failure" and event is TaskEvent.CLEAN_EXIT):
            rest = TaskState.STOPPED if event is TaskEvent.CLEAN_EXIT else TaskState.FAILED
            return replace(ended, state=rest), None
        ends = (*(end for end in self.ends if end > now - self.policy.window), now)
        if len(ends) > self.policy.limit:
            return replace(ended, state=TaskState.FAILED, ends=ends), None
        wake_at = now + _delay(self.policy, len(ends), chance)
        return replace(ended, state=TaskState.BACKING_OFF, ends=ends, wake_at=wake_at), None

    def _give_up(self) -> tuple[TaskStateMachine, Action | None]:
        rest = TaskState.STOPPED if self.state is TaskState.STOPPING else TaskState.FAILED
        return replace(self, state=rest, misses=0, wake_at=None, again=False), None

    def _blocked(self, now: float, chance: float) -> tuple[TaskStateMachine, Action | None]:
        """Wait until the port may be free. This says nothing about the task, so it does not count as an exit."""
        if self.state is TaskState.STOPPING:
            return self._ended(TaskEvent.FAILED_EXIT, now, chance)
        if self.state is TaskState.STARTING and self.policy.policy == "never":
            return replace(self, state=TaskState.FAILED), None
        if self.state in (TaskState.STARTING, TaskState.BACKING_OFF):
            return replace(self, state=TaskState.BACKING_OFF, wake_at=now + settings.PORT_RETRY_SECONDS), None
        return self, None

    def _due(self, now: float) -> tuple[TaskStateMachine, Action | None]:
        if self.wake_at is None or now < self.wake_at:
            return self, None
        if self.state is TaskState.BACKING_OFF:
            return replace(self, state=TaskState.STARTING, restarts=self.restarts + 1, wake_at=None), Action.SPAWN
        return replace(self, wake_at=None), Action.KILL

    def _checked(self, event: TaskEvent) -> tuple[TaskStateMachine, Action | None]:
        if self.state not in HAS_PROCESS or self.state is TaskState.STOPPING:
            return self, None
        if event is TaskEvent.PROBE_OK:
            return replace(self, state=TaskState.READY, misses=0), None
        misses = self.misses + 1
        # A server that is still starting has not answered yet. It is killed only if it takes far too long.
        if self.state is TaskState.STARTING:
            if misses < settings.FAILED_PROBES_MAX_STARTING or self.policy.policy == "never":
                return replace(self, misses=misses), None
            return replace(self, misses=0), Action.KILL
        if misses < settings.FAILED_PROBES_MAX:
            return replace(self, misses=misses), None
        if self.policy.policy == "never" or misses < 2 * settings.FAILED_PROBES_MAX:
            return replace(self, state=TaskState.UNRESPONSIVE, misses=misses), None
        return replace(self, misses=0), Action.KILL


def _delay(policy: RestartPolicy, ends: int, chance: float) -> float:
    """Return the back-off in seconds: 0 after the first exit, then `initial`, doubling up to `max`, with jitter.

    The jitter is the "equal jitter" of M. Brooker, Exponential Backoff And Jitter (AWS Architecture Blog, 2015): half
    of the delay is fixed and the other half is random. This way tasks that died together restart one after another.
    With "full jitter" a task could also restart without any delay, which would use up its restart limit quickly.

    Args:
        policy: The restart policy.
        ends: Number of exits within the policy's window.
        chance: A random number from 0 to 1.
    """
    if ends <= 1:
        return 0.0
    # The exponent is limited because a float overflows at 2**1024. The delay reaches `max` long before.
    longest = min(policy.max, policy.initial * 2.0 ** min(ends - 2, 64))
    return longest * (1.0 + chance) / 2.0
