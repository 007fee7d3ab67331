"""One step of a task: an event, what its machine made of it, and the process that was forked for it."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.tasks.state_machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_runtime import TaskRuntime


@dataclass(frozen=True)
class Step:
    """A step that has been made.

    Attributes:
        task: The task, as it is after the step.
        event: The event.
        before: Its machine before the step.
        action: What the machine decided.
        child: The process that was forked; it waits to be released.
        story: What to record of the step in the history, see `story`.
    """

    task: TaskRuntime
    event: TaskEvent
    before: TaskStateMachine
    action: Action | None
    child: ChildProcess | None
    describe_transition: tuple[str, str] | None

    @property
    def is_news(self) -> bool:
        """Whether the journal and those who watch the task must know of the step."""
        now = self.task.machine
        changed = (now.state, now.wanted) != (self.before.state, self.before.wanted)
        return changed or self.action is Action.SPAWN

    def undo(self) -> None:
        """Put the machine back, end the process that was forked, which has not begun, and wait for its end."""
        self.task.machine = self.before
        if self.child is not None:
            self.child.hang_up()
            self.child.kill()
            self.child.reap()
