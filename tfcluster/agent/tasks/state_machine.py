"""The life of a task as a pure state machine: (machine, event, now, chance) -> (machine, action).

Time is passed in as monotonic seconds and chance as a number: every edge is tested without a clock, luck or a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from tfcluster.core.states import DESIRED_RUNNING, HAS_PROCESS, TERMINAL_STATES, TaskState
from tfcluster.core.topology import RestartPolicy

#: Health checks missed in a row before a task that was ready counts as unresponsive.
FAILED_PROBES_ALLOWED = 3
#: The same for a task that has never answered: a server that takes a minute to reach its GPUs is still starting.
_STARTING_MISSES_ALLOWED = 20
#: Seconds between two looks whether a port that another process has is free.
_BLOCKED_SECONDS = 1.0


class TaskEvent(Enum):
    """What can happen to a task."""

    START = auto()  # somebody wants it up
    STOP = auto()  # somebody wants it down
    RESTART = auto()  # somebody wants it ended, if it runs, and started anew
    PROBE_OK = auto()  # it answered a health check
    PROBE_FAILED = auto()  # it did not
    FAILED_EXIT = auto()  # its process ended with a signal or a code other than 0
    CLEAN_EXIT = auto()  # its process ended with code 0
    UNSTARTABLE = auto()  # something is missing that no further try would find
    BLOCKED = auto()  # another process has its port
    UNSTARTED = auto()  # its agent died before it had told the process to begin
    TIMER = auto()  # the machine's `wake_at` has come


class Action(Enum):
    """What the supervisor must do after an event."""

    SPAWN = auto()
    TERMINATE = auto()
    KILL = auto()


@dataclass(frozen=True)
class TaskStateMachine:
    """Where a task stands.

    Attributes:
        policy: When it is started again.
        state: Its state.
        restarts: How often it was started again by itself since it was last started on purpose.
        ends: Times at which it ended by itself, within the policy's window.
        misses: Health checks missed in a row.
        wake_at: When the machine wants the event DUE, in monotonic seconds.
        grace: Seconds between TERM and KILL, while stopping.
        again: It is stopping to be started anew.
    """

    policy: RestartPolicy
    state: TaskState = TaskState.STOPPED
    restarts: int = 0
    ends: tuple[float, ...] = ()
    misses: int = 0
    wake_at: float | None = None
    grace: float = 5.0
    again: bool = False

    @property
    def wanted(self) -> bool:
        """Whether the task is meant to be up."""
        return self.state in DESIRED_RUNNING or self.again

    def after(self, event: TaskEvent, now: float, chance: float) -> tuple[TaskStateMachine, Action | None]:
        """The machine after an event, and what to do; unchanged where the event says nothing.

        Args:
            event: What happened.
            now: When, in monotonic seconds.
            chance: A random number from 0 to 1, for the jitter of a wait.
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
            # Whoever wants it down sooner than another decides how long it may take, unless it has been killed already.
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
        # One that is stopping already does so for good, or to be started anew: it stays at that.
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
        """Wait until the port may be free: that says nothing about the task, and does not count as an end of it."""
        if self.state is TaskState.STOPPING:
            return self._ended(TaskEvent.FAILED_EXIT, now, chance)
        if self.state is TaskState.STARTING and self.policy.policy == "never":
            return replace(self, state=TaskState.FAILED), None
        if self.state in (TaskState.STARTING, TaskState.BACKING_OFF):
            return replace(self, state=TaskState.BACKING_OFF, wake_at=now + _BLOCKED_SECONDS), None
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
        # A server that is still starting has not answered yet; only one that takes far too long is given up.
        if self.state is TaskState.STARTING:
            if misses < _STARTING_MISSES_ALLOWED or self.policy.policy == "never":
                return replace(self, misses=misses), None
            return replace(self, misses=0), Action.KILL
        if misses < FAILED_PROBES_ALLOWED:
            return replace(self, misses=misses), None
        if self.policy.policy == "never" or misses < 2 * FAILED_PROBES_ALLOWED:
            return replace(self, state=TaskState.UNRESPONSIVE, misses=misses), None
        return replace(self, misses=0), Action.KILL


def _delay(policy: RestartPolicy, ends: int, chance: float) -> float:
    """Seconds to wait after so many ends: none after the first, then `initial`, doubling up to `max`, with jitter.

    The jitter is the "equal jitter" of M. Brooker, Exponential Backoff And Jitter (AWS Architecture Blog, 2015): half
    of the wait is kept and the other half is left to chance. Tasks that died together so come back one by one, and
    none of them, as with "full jitter", without any wait, which would use up its limit in no time.
    """
    if ends <= 1:
        return 0.0
    # A float's exponent ends at 1024; the wait reaches `max` long before.
    longest = min(policy.max, policy.initial * 2.0 ** min(ends - 2, 64))
    return longest * (1.0 + chance) / 2.0
